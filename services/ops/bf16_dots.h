// bfloat16 products with b stored as [n, k]. Unlike panel.h, nothing is packed:
// each element is a dot product of two rows, read in place.
//
// Each element is accumulated in sixteen partial sums, in an order that depends
// on k only, so the bits of a row do not depend on other rows.
//
// Thread-safe.

#ifndef SERVICES_OPS_BF16_DOTS_H_
#define SERVICES_OPS_BF16_DOTS_H_

#include <cstdint>

#include "services/tensor/bfloat16.h"

namespace gshard {

// c [m, n] = a [m, k] times the transpose of b [n, k], plus the old c if
// `accumulate`. Strides are elements between rows. REQUIRES: HasAvx512Bf16().
void MultiplyTransposed(int64_t m, int64_t n, int64_t k, const BFloat16* a,
                        int64_t a_stride, const BFloat16* b, int64_t b_stride,
                        float* c, int64_t c_stride, bool accumulate);

}  // namespace gshard

#endif  // SERVICES_OPS_BF16_DOTS_H_
