// Products of rows that are sorted by expert, each with its expert's matrix,
// and the gradients. All pointers are the device's.
//
//   R  rows, K  width of a row, N  width of a result row, E  experts
//
// A result row has the same bits whatever rows are beside it; so have an
// expert's gradients. Sizes may be any, zero too; rows and matrices that begin
// at multiples of 16 bytes are read faster.

#ifndef SERVICES_CUDA_KERNELS_RAGGED_PRODUCT_H_
#define SERVICES_CUDA_KERNELS_RAGGED_PRODUCT_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/float_product.h"
#include "services/cuda/kernels/ragged_tiles.h"
#include "services/cuda/kernels/tile_product.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {

// Experts with as many rows or fewer are for the small tiles, of which a few
// read the weights again, from the cache; the others for large ones, which
// compute for rows that are not there. Of bfloat16.
inline constexpr int32_t kFewRows = 32;

// rows [R, K] times weights [E, K, N], or transposed ones [E, N, K], for the
// gradient of rows; then, in this order, as each is wanted: plus the expert's
// bias, rounded to bfloat16, rectified.
template <typename T>
struct RaggedProduct {
  const T* rows;
  const T* weights;
  bool transposed = false;
  // At most as high as the kernel's; or null, and all experts have as many
  // rows: BlocksAlong(rows_of_each, the kernel's) tiles each.
  const RaggedTile* tiles;
  int64_t num_tiles;
  int32_t rows_of_each = 0;
  int64_t k;
  int64_t n;
  const float* bias = nullptr;  // [E, N]
  bool relu = false;
  // One of them, [R, N].
  float* out = nullptr;
  BFloat16* rounded_out = nullptr;
};

// Of each expert: rows [R_e, K] transposed times gradients [R_e, N] of the
// results, [E, K, N]; zeros without rows.
template <typename T>
struct RaggedWeightsGradient {
  const T* rows;
  const T* dresult;
  const int64_t* offsets;  // GroupOffsets; or null, as above
  int64_t experts;
  int64_t k;
  int64_t n;
  float* out;
  int32_t rows_of_each = 0;
};

// max(x, 0), with -0 and NaN as they are, as services/ops/elementwise.h has it.
GSHARD_KERNEL_INLINE float Rectified(float x) { return x < 0.0f ? 0.0f : x; }

// Stores pairs of a tile's elements.
template <typename T>
GSHARD_KERNEL_INLINE void StoreProduct(const RaggedProduct<T>& p,
                                       const RaggedTile& tile, int64_t column,
                                       int row, const float (&pair)[2]) {
  if (row >= tile.rows) return;
  const int64_t at = (tile.first_row + row) * p.n;
  GSHARD_UNROLL for (int i = 0; i < 2; ++i) {
    const int64_t c = column + i;
    if (c >= p.n) return;
    float x = pair[i];
    if (p.bias != nullptr) x += p.bias[tile.expert * p.n + c];
    if (p.rounded_out != nullptr) {
      const BFloat16 rounded = ToBFloat16(x);
      p.rounded_out[at + c] =
          p.relu ? ToBFloat16(Rectified(ToFloat(rounded))) : rounded;
    } else {
      p.out[at + c] = p.relu ? Rectified(x) : x;
    }
  }
}

// Blocks: for each tile those of its columns, one after the other, so that what
// runs at a time shares rows and an expert; of a gradient, for each expert,
// rows of its matrix, and of these.
constexpr int64_t BlocksAlong(int64_t size, int of_tile) {
  return (size + of_tile - 1) / of_tile;
}
template <typename Shape, typename T>
constexpr int64_t BlocksOf(const RaggedProduct<T>& p) {
  return p.num_tiles * BlocksAlong(p.n, Shape::kColumns);
}
template <typename Shape, typename T>
constexpr int64_t BlocksOf(const RaggedWeightsGradient<T>& g) {
  return g.experts * BlocksAlong(g.k, Shape::kRows) *
         BlocksAlong(g.n, Shape::kColumns);
}

template <typename Shape, typename T>
GSHARD_KERNEL_INLINE RaggedTile TileAt(const RaggedProduct<T>& p, int64_t i) {
  if (p.tiles != nullptr) return p.tiles[i];
  const int64_t of_each = BlocksAlong(p.rows_of_each, Shape::kRows);
  const int64_t row = i % of_each * Shape::kRows;
  const int64_t left = p.rows_of_each - row;
  return {
      .first_row = i / of_each * p.rows_of_each + row,
      .expert = static_cast<int32_t>(i / of_each),
      .rows = static_cast<int32_t>(left < Shape::kRows ? left : Shape::kRows)};
}

// One block of a RaggedProduct. Tiles are at most Shape::kRows high.
template <typename Shape, LinesAlong kB>
GSHARD_KERNEL_INLINE void RaggedProductBlock(const RaggedProduct<BFloat16>& p) {
  const int64_t across = BlocksAlong(p.n, Shape::kColumns);
  const RaggedTile tile = TileAt<Shape>(p, BlockIndex() / across);
  const int64_t first_column = BlockIndex() % across * Shape::kColumns;
  const BFloat16* const weights = p.weights + tile.expert * p.k * p.n;
  // What lies beyond the tile's rows belongs to another expert.
  const Lines<BFloat16> a = {p.rows, p.k, tile.first_row + tile.rows, p.k};
  const Lines<BFloat16> b = kB == LinesAlong::kK
                                ? Lines<BFloat16>{weights, p.k, p.n, p.k}
                                : Lines<BFloat16>{weights, p.n, p.k, p.n};
  TileProduct<Shape, LinesAlong::kK, kB>::Run(
      a, b, tile.first_row, first_column, p.k,
      [&](int row, int column, float first, float second) {
        StoreProduct(p, tile, first_column + column, row, {first, second});
      });
}

GSHARD_KERNEL_INLINE void RaggedProductBlock(const RaggedProduct<float>& p) {
  const int64_t across = BlocksAlong(p.n, FloatTile::kColumns);
  const RaggedTile tile = TileAt<FloatTile>(p, BlockIndex() / across);
  const int64_t first_column = BlockIndex() % across * FloatTile::kColumns;
  const float* const rows = p.rows + tile.first_row * p.k;
  const float* const weights = p.weights + tile.expert * p.k * p.n;
  FloatTile::Run(
      [&](int row, int64_t depth) {
        return row < tile.rows ? rows[row * p.k + depth] : 0.0f;
      },
      [&](int64_t depth, int column) {
        const int64_t c = first_column + column;
        if (c >= p.n) return 0.0f;
        return weights[p.transposed ? c * p.k + depth : depth * p.n + c];
      },
      p.k,
      [&](int row, int column, float first, float second) {
        StoreProduct(p, tile, first_column + column, row, {first, second});
      });
}

// Where a block of a RaggedWeightsGradient works.
template <typename T>
struct WeightsGradientPlace {
  int64_t expert, row, column;  // of its matrix
  int64_t first, rows;          // the expert's

  GSHARD_KERNEL_INLINE WeightsGradientPlace(const RaggedWeightsGradient<T>& g,
                                            int tile_rows, int tile_columns) {
    const int64_t across = BlocksAlong(g.n, tile_columns);
    const int64_t down = BlocksAlong(g.k, tile_rows);
    expert = BlockIndex() / (across * down);
    row = BlockIndex() / across % down * tile_rows;
    column = BlockIndex() % across * tile_columns;
    const bool even = g.offsets == nullptr;
    first = even ? expert * g.rows_of_each : g.offsets[expert];
    rows = even ? g.rows_of_each : g.offsets[expert + 1] - first;
  }

  GSHARD_KERNEL_INLINE void Store(const RaggedWeightsGradient<T>& g, int r,
                                  int c, const float (&pair)[2]) const {
    if (row + r >= g.k) return;
    float* const out = g.out + (expert * g.k + row + r) * g.n;
    for (int i = 0; i < 2; ++i) {
      if (column + c + i < g.n) out[column + c + i] = pair[i];
    }
  }
};

template <typename Shape>
GSHARD_KERNEL_INLINE void RaggedWeightsGradientBlock(
    const RaggedWeightsGradient<BFloat16>& g) {
  const WeightsGradientPlace<BFloat16> at(g, Shape::kRows, Shape::kColumns);
  const Lines<BFloat16> a = {g.rows + at.first * g.k, g.k, at.rows, g.k};
  const Lines<BFloat16> b = {g.dresult + at.first * g.n, g.n, at.rows, g.n};
  TileProduct<Shape, LinesAlong::kAcross, LinesAlong::kAcross>::Run(
      a, b, at.row, at.column, at.rows,
      [&](int row, int column, float first, float second) {
        at.Store(g, row, column, {first, second});
      });
}

GSHARD_KERNEL_INLINE void RaggedWeightsGradientBlock(
    const RaggedWeightsGradient<float>& g) {
  const WeightsGradientPlace<float> at(g, FloatTile::kRows,
                                       FloatTile::kColumns);
  const float* const rows = g.rows + at.first * g.k;
  const float* const dresult = g.dresult + at.first * g.n;
  FloatTile::Run(
      [&](int row, int64_t depth) {
        return at.row + row < g.k ? rows[depth * g.k + at.row + row] : 0.0f;
      },
      [&](int64_t depth, int column) {
        const int64_t c = at.column + column;
        return c < g.n ? dresult[depth * g.n + c] : 0.0f;
      },
      at.rows,
      [&](int row, int column, float first, float second) {
        at.Store(g, row, column, {first, second});
      });
}

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_RAGGED_PRODUCT_H_
