// Reverse-mode differentiation as a transformation of the program.

#ifndef SERVICES_GRAPH_GRADIENT_H_
#define SERVICES_GRAPH_GRADIENT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/graph/builder.h"

namespace gshard {

// Adds to the builder's program the gradients of `loss`, which is f32[], with
// respect to each of `values`, and returns them in that order. A value that
// the loss does not depend on gets kNoValue.
//
// A gradient carries the sharding annotation of its value (program.h). It is
// float32, even for a bfloat16 value, unless a cast has rounded it.
//
// Sums run in the reverse order of uses, so the result depends only on the
// program.
//
// Errors: InvalidArgument if the loss is not a scalar; Unimplemented naming an
// operator on the path that has no gradient.
absl::StatusOr<std::vector<ValueId>> AddGradients(
    Builder& builder, ValueId loss, absl::Span<const ValueId> values);

}  // namespace gshard

#endif  // SERVICES_GRAPH_GRADIENT_H_
