// Permutation of dimensions, for element types of 2 or 4 bytes.

#ifndef SERVICES_OPS_TRANSPOSE_H_
#define SERVICES_OPS_TRANSPOSE_H_

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Dimension i of the result is dimension permutation[i] of x. Shares the buffer
// of x if no element moves.
Tensor Transpose(const Tensor& x, absl::Span<const int> permutation);

}  // namespace gshard

#endif  // SERVICES_OPS_TRANSPOSE_H_
