// Sums over dimensions, and their inverse: broadcasting along new dimensions.

#ifndef SERVICES_OPS_REDUCE_H_
#define SERVICES_OPS_REDUCE_H_

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Sums float32 x over `dims` (ascending, distinct), which are removed. The
// order of the additions is fixed by the sizes.
Tensor ReduceSum(const Tensor& x, absl::Span<const int> dims);

// Repeats float32 x to the sizes `target`, whose dimensions `new_dims`
// (ascending, distinct) x does not have: the gradient of ReduceSum. REQUIRES:
// `target` without `new_dims` has the sizes of x.
Tensor Broadcast(const Tensor& x, const Dims& target,
                 absl::Span<const int> new_dims);

}  // namespace gshard

#endif  // SERVICES_OPS_REDUCE_H_
