// Batched matrix products of equal sizes, computed as ragged products with
// equal groups.
//
//   B  products    m, k, n  sizes of each

#ifndef SERVICES_CUDA_OPS_PRODUCTS_H_
#define SERVICES_CUDA_OPS_PRODUCTS_H_

#include <cstdint>

#include "services/cuda/kernels/ragged_product.h"
#include "services/cuda/ops/kernel_call.h"

namespace gshard {

struct ProductSizes {
  int64_t batch, m, k, n;
};

// out [B, m, n] = a [B, m, k] times b, which is [B, k, n], or [B, n, k] if
// `transposed`. The bits of a row do not depend on m. T is float or BFloat16.
// Errors: InvalidArgument for 2^31 or more matrices or rows.
template <typename T>
absl::Status Multiply(KernelCall& call, const ProductSizes& sizes, const T* a,
                      const T* b, bool transposed, float* out);

// out [m, n] = a [m, k], quantized by rows, times b [k, n] in panels of int8.
// sizes.batch is 1.
absl::Status Multiply(KernelCall& call, const ProductSizes& sizes,
                      const float* a, const int8_t* b, float* out);

// Quantizes rows [m, product.k] into scratch memory of the call, as the rows of
// `product`.
absl::Status SetRows(KernelCall& call, const float* rows, int64_t m,
                     cuda::RaggedProduct<int8_t>& product);

// out [B, m, n] = the transpose of a [B, k, m] times b [B, k, n].
template <typename T>
absl::Status MultiplyTransposed(KernelCall& call, const ProductSizes& sizes,
                                const T* a, const T* b, float* out);

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_PRODUCTS_H_
