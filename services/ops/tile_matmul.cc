#include "services/ops/tile_matmul.h"

#include "services/ops/cpu_isa.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

// Rows of a tile: with 16 columns, the sums fill half the vector registers of
// AVX2 or of AVX-512 and leave the others for the operands.
constexpr int kTileRows = 4;
constexpr int kTileRowsOfAvx512 = 16;

template <int kRows, bool kDense, bool kAdd>
inline __attribute__((always_inline)) void Tile(int64_t k, TileOperand a,
                                                const float* b,
                                                int64_t b_stride, float* c,
                                                int64_t c_stride) {
  float sums[kRows][kTileColumns];
  for (int i = 0; i < kRows; ++i) {
#pragma omp simd
    for (int j = 0; j < kTileColumns; ++j) {
      sums[i][j] = kAdd ? c[i * c_stride + j] : 0.0f;
    }
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

// Tiles of kRows rows from row i on, as many as there are. Returns the next
// row.
template <int kRows, bool kDense, bool kAdd>
inline __attribute__((always_inline)) int64_t TilesBelow(
    int64_t i, int64_t m, int64_t k, TileOperand a, const float* b,
    int64_t b_stride, float* c, int64_t c_stride) {
  for (; i + kRows <= m; i += kRows) {
    TileOperand rows = a;
    rows.data += i * a.row_stride;
    Tile<kRows, kDense, kAdd>(k, rows, b, b_stride, c + i * c_stride, c_stride);
  }
  return i;
}

template <bool kDense, bool kAdd>
inline __attribute__((always_inline)) void Tiles(int64_t m, int64_t n,
                                                 int64_t k, TileOperand a,
                                                 const float* b,
                                                 int64_t b_stride, float* c,
                                                 int64_t c_stride) {
  const bool large = HasAvx512();
  for (int64_t j = 0; j < n; j += kTileColumns, b += kTileColumns) {
    float* const to = c + j;
    int64_t i = 0;
    if (large) {
      i = TilesBelow<kTileRowsOfAvx512, kDense, kAdd>(i, m, k, a, b, b_stride,
                                                      to, c_stride);
    }
    i = TilesBelow<kTileRows, kDense, kAdd>(i, m, k, a, b, b_stride, to,
                                            c_stride);
    TilesBelow<1, kDense, kAdd>(i, m, k, a, b, b_stride, to, c_stride);
  }
}

}  // namespace

GSHARD_SIMD void TileMatmul(int64_t m, int64_t n, int64_t k, TileOperand a,
                            const float* b, int64_t b_stride, float* c,
                            int64_t c_stride) {
  if (a.column_stride == 1) {
    Tiles<true, false>(m, n, k, a, b, b_stride, c, c_stride);
  } else {
    Tiles<false, false>(m, n, k, a, b, b_stride, c, c_stride);
  }
}

GSHARD_SIMD void AddTileMatmul(int64_t m, int64_t n, int64_t k, TileOperand a,
                               const float* b, int64_t b_stride, float* c,
                               int64_t c_stride) {
  if (a.column_stride == 1) {
    Tiles<true, true>(m, n, k, a, b, b_stride, c, c_stride);
  } else {
    Tiles<false, true>(m, n, k, a, b, b_stride, c, c_stride);
  }
}

}  // namespace gshard
