// Reversal of dimensions, of any element type.

#ifndef SERVICES_OPS_REVERSE_H_
#define SERVICES_OPS_REVERSE_H_

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// x with the indices of each of `dims` (ascending, distinct) in reverse order.
Tensor Reverse(const Tensor& x, absl::Span<const int> dims);

}  // namespace gshard

#endif  // SERVICES_OPS_REVERSE_H_
