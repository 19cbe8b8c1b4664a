// Concatenation and slicing, of all element types.

#ifndef SERVICES_OPS_CONCAT_H_
#define SERVICES_OPS_CONCAT_H_

#include <cstdint>

#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Concatenates the tensors along `dim`.
// REQUIRES: at least one; same type, and same sizes except along `dim`.
Tensor Concat(absl::Span<const Tensor> tensors, int dim);

// Indices [begin, end) of `dim`. Shares x's buffer if `dim` is 0.
Tensor Slice(const Tensor& x, int dim, int64_t begin, int64_t end);

// The gradient of Slice, where x had size `size` along `dim`: dy at indices
// [begin, ...) of `dim`, zeros elsewhere.
Tensor SliceGradient(const Tensor& dy, int dim, int64_t begin, int64_t size);

}  // namespace gshard

#endif  // SERVICES_OPS_CONCAT_H_
