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
// float32, that of a bfloat16 value too unless a cast has rounded it.
//
// The order of sums is the reverse of the order of uses, so the result does
// not depend on anything but the program.
//
// Errors: InvalidArgument if the loss is not a scalar; Unimplemented naming an
// operator on the way that has no gradient.
absl::StatusOr<std::vector<ValueId>> AddGradients(
    Builder& builder, ValueId loss, absl::Span<const ValueId> values);

}  // namespace gshard

#endif  // SERVICES_GRAPH_GRADIENT_H_
