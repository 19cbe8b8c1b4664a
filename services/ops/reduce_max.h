// Maximum over dimensions, float32.

#ifndef SERVICES_OPS_REDUCE_MAX_H_
#define SERVICES_OPS_REDUCE_MAX_H_

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// The maximum of x over `dims` (ascending, distinct), which are removed: NaN if
// one of the elements is NaN, minus infinity if there are none.
Tensor ReduceMax(const Tensor& x, absl::Span<const int> dims);

// The gradient of y = ReduceMax(x, dims): dy, shared equally among the elements
// of x that equal their maximum.
Tensor ReduceMaxGradient(const Tensor& x, const Tensor& y, const Tensor& dy,
                         absl::Span<const int> dims);

}  // namespace gshard

#endif  // SERVICES_OPS_REDUCE_MAX_H_
