// Float32 products with weights as they are stored, for processors without
// AVX512, on which the sums of oneDNN's kernels depend on the number of rows.
//
// Elements are summed over k in order, in blocks of `depth` that are summed
// separately, whatever m and n are: with FMA instructions these are the bits of
// the kernels for AVX512 (panel.h).
//
// Thread-safe.

#ifndef SERVICES_OPS_PLAIN_MATMUL_H_
#define SERVICES_OPS_PLAIN_MATMUL_H_

#include <cstdint>

#include "services/ops/tile_matmul.h"

namespace gshard {

// c [m, n] = a [m, k] b [k, n], plus the old c if `accumulate`. Rows of c are
// c_stride floats apart. REQUIRES: k >= 1.
void PlainMatmul(int64_t m, int64_t n, int64_t k, TileOperand a, TileOperand b,
                 float* c, int64_t c_stride, bool accumulate, int64_t depth);

}  // namespace gshard

#endif  // SERVICES_OPS_PLAIN_MATMUL_H_
