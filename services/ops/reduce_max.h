// The largest element over dimensions, float32.

#ifndef SERVICES_OPS_REDUCE_MAX_H_
#define SERVICES_OPS_REDUCE_MAX_H_

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// The largest element of x over `dims` (ascending, distinct), which the result
// lacks: NaN if there is one among them, minus infinity if there are none.
Tensor ReduceMax(const Tensor& x, absl::Span<const int> dims);

// The gradient of y = ReduceMax(x, dims): dy, in equal shares for the elements
// of x that equal their largest.
Tensor ReduceMaxGradient(const Tensor& x, const Tensor& y, const Tensor& dy,
                         absl::Span<const int> dims);

}  // namespace gshard

#endif  // SERVICES_OPS_REDUCE_MAX_H_
