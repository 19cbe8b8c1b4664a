#include "services/ops/tile_matmul.h"

#include "services/ops/simd.h"

namespace gshard {
namespace {

// Rows of a tile: with 16 columns, the sums fill half the vector registers of
// AVX2 and leave the others for the operands.
constexpr int kTileRows = 4;

template <int kRows, bool kDense>
inline __attribute__((always_inline)) void Tile(int64_t k, TileOperand a,
                                                const float* b,
                                                int64_t b_stride, float* c,
                                                int64_t c_stride) {
  float sums[kRows][kTileColumns];
  for (int i = 0; i < kRows; ++i) {
#pragma omp simd
    for (int j = 0; j < kTileColumns; ++j) sums[i][j] = 0.0f;
  }
  for (int64_t l = 0; l < k; ++l) {
    for (int i = 0; i < kRows; ++i) {
      const float x =
          a.data[i * a.row_stride + (kDense ? l : l * a.column_stride)];
#pragma omp simd
      for (int j = 0; j < kTileColumns; ++j) {
        sums[i][j] += x * b[l * b_stride + j];
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
#pragma omp simd
    for (int j = 0; j < kTileColumns; ++j) c[i * c_stride + j] = sums[i][j];
  }
}

template <bool kDense>
inline __attribute__((always_inline)) void Tiles(int64_t m, int64_t n,
                                                 int64_t k, TileOperand a,
                                                 const float* b,
                                                 int64_t b_stride, float* c,
                                                 int64_t c_stride) {
  for (int64_t j = 0; j < n; j += kTileColumns) {
    TileOperand rows = a;
    float* to = c + j;
    int64_t i = 0;
    for (; i + kTileRows <= m; i += kTileRows) {
      Tile<kTileRows, kDense>(k, rows, b + j, b_stride, to, c_stride);
      rows.data += kTileRows * a.row_stride;
      to += kTileRows * c_stride;
    }
    for (; i < m; ++i) {
      Tile<1, kDense>(k, rows, b + j, b_stride, to, c_stride);
      rows.data += a.row_stride;
      to += c_stride;
    }
  }
}

}  // namespace

GSHARD_SIMD void TileMatmul(int64_t m, int64_t n, int64_t k, TileOperand a,
                            const float* b, int64_t b_stride, float* c,
                            int64_t c_stride) {
  if (a.column_stride == 1) {
    Tiles<true>(m, n, k, a, b, b_stride, c, c_stride);
  } else {
    Tiles<false>(m, n, k, a, b, b_stride, c, c_stride);
  }
}

}  // namespace gshard
