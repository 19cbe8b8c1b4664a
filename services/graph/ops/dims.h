// Dimensions given by an operator's attributes.

#ifndef SERVICES_GRAPH_OPS_DIMS_H_
#define SERVICES_GRAPH_OPS_DIMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/graph/dim.h"
#include "services/graph/op.h"

namespace gshard {

// The attribute `name` as dimensions of a tensor of rank `rank`. Errors:
// InvalidArgument unless they are in range and strictly ascending.
absl::StatusOr<std::vector<int>> ExpectDims(const Attributes& attributes,
                                            absl::string_view name, int rank);

// The attribute `name` as one dimension of a tensor of rank `rank`. Errors:
// InvalidArgument unless it is in range.
absl::StatusOr<int> ExpectDim(const Attributes& attributes,
                              absl::string_view name, int rank);

// The result of an operator that reduces a float operand along its "dims".
ResultTypes InferReduction(absl::Span<const ValueType> operands,
                           const Attributes& attributes);

// Converts to the type that kernels take.
std::vector<int> ToInts(const std::vector<int64_t>& dims);

// `shape` without `dims`, which are ascending.
Shape WithoutDims(const Shape& shape, absl::Span<const int> dims);

}  // namespace gshard

#endif  // SERVICES_GRAPH_OPS_DIMS_H_
