// Dense matrix products: by oneDNN those of float32 with weights as they are
// stored; those with weights in panels, past the caches or of few rows, and
// those of bfloat16, by panel.h and bf16_dots.h; those of int8 by int8_panel.h.
//
// On CPUs without instructions for bfloat16 its products are those of the
// numbers as float32: as exact, not as fast. The instructions take numbers
// below 2^-126, subnormal ones, for zeros.
//
// A row of the result has the same bits whatever the number of rows beside it
// (tests/services/ops/matmul_test.cc holds oneDNN to this, too); serving and
// partitioned execution rely on it.
//
// Products are parted into tiles for ParallelFor (parallel.h), blocks of rows
// and columns of the result. How depends on the shape alone, and for columns on
// n and k alone, so that neither threads nor rows beside it change a row's
// bits.
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
  bool b_in_panels = false;  // see panel.h; a is not transposed then
  bool streams = false;      // c is large and not read soon
};

// Prepares the process for our kernels: one OpenMP thread a call. Call once at
// the start of main(), before other threads compute. Kernels called without it
// give the same results and set the thread count of the calling thread.
void InitCompute();

// c = op(a) op(b), plus the old c if `accumulate`. An empty sum (k = 0) is
// zero.
void Matmul(const MatmulShape& shape, const float* a, const float* b, float* c,
            bool accumulate = false);
void Matmul(const MatmulShape& shape, const BFloat16* a, const BFloat16* b,
            float* c, bool accumulate = false);

// The tiles of Matmul(), for kernels that have many products at once: how many
// there are, and one of them. All tiles together are the product.
int64_t MatmulTiles(const MatmulShape& shape);
void MatmulTile(const MatmulShape& shape, int64_t tile, const float* a,
                const float* b, float* c, bool accumulate = false);
void MatmulTile(const MatmulShape& shape, int64_t tile, const BFloat16* a,
                const BFloat16* b, float* c, bool accumulate = false);
// The same for rows [first_row, first_row + m) of a and b in panels of int8
// (int8_panel.h), of which the shape's flags say nothing.
void MatmulTile(const MatmulShape& shape, int64_t tile, const Int8Rows& a,
                int64_t first_row, const int8_t* b, float* c);

// Matmul() for `batch` products whose operands follow each other in memory.
void BatchMatmul(const MatmulShape& shape, int64_t batch, const float* a,
                 const float* b, float* c, bool accumulate = false);
void BatchMatmul(const MatmulShape& shape, int64_t batch, const BFloat16* a,
                 const BFloat16* b, float* c, bool accumulate = false);

}  // namespace gshard

#endif  // SERVICES_OPS_MATMUL_H_
