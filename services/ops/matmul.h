// Dense matrix products. Implementations: oneDNN for float32 with weights as
// they are stored; panel.h and bf16_dots.h for bfloat16 and for float32 with
// weights in panels, with results that bypass the caches, or with few rows;
// int8_panel.h for int8; and plain_matmul.h instead of oneDNN on CPUs without
// AVX512.
//
// On CPUs without bfloat16 instructions, bfloat16 products are computed in
// float32: as exact, but slower. The instructions treat subnormal numbers,
// below 2^-126, as zeros.
//
// A row of the result has the same bits whatever the number of other rows
// (tests/services/ops/matmul_test.cc checks this for oneDNN, too); serving and
// partitioned execution rely on it.
//
// Products are split into tiles, blocks of rows and columns of the result, for
// ParallelFor (parallel.h). The split depends on the shape only, and that of
// columns on n and k only, so neither the number of threads nor other rows
// change the bits of a row.
//
// Thread-safe: each thread has its own cache of compiled primitives.

#ifndef SERVICES_OPS_MATMUL_H_
#define SERVICES_OPS_MATMUL_H_

#include <cstdint>

#include "services/ops/int8_panel.h"
#include "services/tensor/bfloat16.h"

namespace gshard {

// c[m, n] = op(a) op(b), where op(a) is [m, k] and op(b) is [k, n]. All dense
// and row-major: a transposed a is stored as [k, m], a transposed b as [n, k].
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool b_in_panels = false;  // see panel.h; then a is not transposed
  bool streams = false;      // c is large and not read soon
};

// Prepares the process for these kernels: one OpenMP thread per call. Call once
// at the start of main(), before other threads compute. Without it, kernels
// give the same results but set the thread count of the calling thread
// themselves.
void InitCompute();

// c = op(a) op(b), plus the old c if `accumulate`. If k is 0, the product is
// zero.
void Matmul(const MatmulShape& shape, const float* a, const float* b, float* c,
            bool accumulate = false);
void Matmul(const MatmulShape& shape, const BFloat16* a, const BFloat16* b,
            float* c, bool accumulate = false);

// The tiles of Matmul(), for callers that schedule the tiles of many products
// at once: the number of tiles, and one of them. All tiles together compute the
// product.
int64_t MatmulTiles(const MatmulShape& shape);
void MatmulTile(const MatmulShape& shape, int64_t tile, const float* a,
                const float* b, float* c, bool accumulate = false);
void MatmulTile(const MatmulShape& shape, int64_t tile, const BFloat16* a,
                const BFloat16* b, float* c, bool accumulate = false);
// The same for rows [first_row, first_row + m) of a, with b in int8 panels
// (int8_panel.h). The flags of `shape` are ignored.
void MatmulTile(const MatmulShape& shape, int64_t tile, const Int8Rows& a,
                int64_t first_row, const int8_t* b, float* c);

// Matmul() for `batch` products whose operands are contiguous in memory.
void BatchMatmul(const MatmulShape& shape, int64_t batch, const float* a,
                 const float* b, float* c, bool accumulate = false);
void BatchMatmul(const MatmulShape& shape, int64_t batch, const BFloat16* a,
                 const BFloat16* b, float* c, bool accumulate = false);

}  // namespace gshard

#endif  // SERVICES_OPS_MATMUL_H_
