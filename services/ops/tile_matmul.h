// Small matrix products with arbitrary row strides. They are for attention,
// whose heads are too small and too many for oneDNN calls.
//
// Each element is one sum in the order of k, whatever the other sizes are.

#ifndef SERVICES_OPS_TILE_MATMUL_H_
#define SERVICES_OPS_TILE_MATMUL_H_

#include <cstdint>

namespace gshard {

// Columns of a tile. b and c must consist of whole tiles.
constexpr int64_t kTileColumns = 16;

constexpr int64_t PadToTile(int64_t n) {
  return (n + kTileColumns - 1) / kTileColumns * kTileColumns;
}

// Element (i, k) is at data[i * row_stride + k * column_stride].
struct TileOperand {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

// c[m, n] = a[m, k] b[k, n]. The elements of a row of b or c are contiguous;
// rows are b_stride and c_stride floats apart. REQUIRES: n is a multiple of
// kTileColumns.
void TileMatmul(int64_t m, int64_t n, int64_t k, TileOperand a, const float* b,
                int64_t b_stride, float* c, int64_t c_stride);

// c += a b. Each element continues the sum that is in c: added part by part
// along k to zeros, a product has the bits of TileMatmul.
void AddTileMatmul(int64_t m, int64_t n, int64_t k, TileOperand a,
                   const float* b, int64_t b_stride, float* c,
                   int64_t c_stride);

}  // namespace gshard

#endif  // SERVICES_OPS_TILE_MATMUL_H_
