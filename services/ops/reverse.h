// Reversal of dimensions, of any element type.

#ifndef SERVICES_OPS_REVERSE_H_
#define SERVICES_OPS_REVERSE_H_

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// x with the order of the indices of each of `dims` (ascending, distinct)
// reversed.
Tensor Reverse(const Tensor& x, absl::Span<const int> dims);

}  // namespace gshard

#endif  // SERVICES_OPS_REVERSE_H_
