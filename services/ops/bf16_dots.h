// Products of bfloat16 where b is stored as [n, k], as by panel.h, but without
// packing: each element is a dot product of two rows that are read as they lie.
//
// An element's sum has sixteen parts and depends on k alone: a row's bits on
// nothing beside it.
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
