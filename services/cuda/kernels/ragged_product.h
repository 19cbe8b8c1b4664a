// Products of rows sorted by expert with the matrices of their experts, and the
// gradients. All pointers are device pointers.
//
//   R  rows, K  width of a row, N  width of a result row, E  experts
//
// The bits of a result row do not depend on the other rows, nor do those of an
// expert's gradients depend on other experts. Any size is allowed, including
// zero. Rows and matrices that begin at multiples of 16 bytes are read faster.

#ifndef SERVICES_CUDA_KERNELS_RAGGED_PRODUCT_H_
#define SERVICES_CUDA_KERNELS_RAGGED_PRODUCT_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/float_product.h"
#include "services/cuda/kernels/int8_product.h"
#include "services/cuda/kernels/ragged_tiles.h"
#include "services/cuda/kernels/tile_product.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {

// bfloat16 and int8: experts with at most this many rows use small tiles,
// others large ones. Several small tiles of one expert each read its weights,
// but from the cache; a large tile also computes rows that do not exist.
inline constexpr int32_t kFewRows = 32;

// rows [R, K] times weights [E, K, N], or if `transposed` weights [E, N, K], as
// for the gradient with respect to the rows. Optionally followed by, in this
// order: adding the expert's bias, rounding to bfloat16, and relu.
//
// T is float, BFloat16 or int8_t. Of int8, `rows` and `row_scales` are results
// of RoundRows, and each expert's weights [K, N] are in panels
// (services/ops/int8_panel.h), however they were stored before.
template <typename T>
struct RaggedProduct {
  const T* rows;
  const float* row_scales = nullptr;  // [R]
  const T* weights;
  bool transposed = false;
  // No tile has more rows than the kernel's tile shape. Null if all experts
  // have rows_of_each rows: each expert then has BlocksAlong(rows_of_each,
  // kRows of the tile shape) tiles.
  const RaggedTile* tiles;
  int64_t num_tiles;
  int32_t rows_of_each = 0;
  int64_t k;
  int64_t n;
  const float* bias = nullptr;  // [E, N]
  bool relu = false;
  // [R, N]; exactly one of the two is not null.
  float* out = nullptr;
  BFloat16* rounded_out = nullptr;
};

// For each expert: the transpose of its rows [R_e, K] times the gradients of
// its results [R_e, N]. The result is [E, K, N], zero for experts without rows.
template <typename T>
struct RaggedWeightsGradient {
  const T* rows;
  const T* dresult;
  const int64_t* offsets;  // GroupOffsets; null: all have rows_of_each
  int64_t experts;
  int64_t k;
  int64_t n;
  float* out;
  int32_t rows_of_each = 0;
};

// max(x, 0), but -0 and NaN stay as they are, as in services/ops/elementwise.h.
GSHARD_KERNEL_INLINE float Rectified(float x) { return x < 0.0f ? 0.0f : x; }

// Stores a pair of neighbours of a row, the second only if `both`: at once
// where the address allows it.
template <typename T>
GSHARD_KERNEL_INLINE void StorePair(T* to, bool both, T first, T second) {
  struct alignas(2 * sizeof(T)) Pair {
    T first, second;
  };
  if (both && reinterpret_cast<uintptr_t>(to) % sizeof(Pair) == 0) {
    *reinterpret_cast<Pair*>(to) = {first, second};
    return;
  }
  to[0] = first;
  if (both) to[1] = second;
}

// Stores a pair of neighbouring elements of a tile's row.
template <typename T>
GSHARD_KERNEL_INLINE void StoreProduct(const RaggedProduct<T>& p,
                                       const RaggedTile& tile, int64_t column,
                                       int row, float first, float second) {
  if (row >= tile.rows || column >= p.n) return;
  const bool both = column + 1 < p.n;
  if (p.bias != nullptr) {
    const float* const bias = p.bias + tile.expert * p.n + column;
    first += bias[0];
    if (both) second += bias[1];
  }
  const int64_t at = (tile.first_row + row) * p.n + column;
  if (p.rounded_out != nullptr) {
    const auto end = [&](float x) {
      const BFloat16 rounded = ToBFloat16(x);
      return p.relu ? ToBFloat16(Rectified(ToFloat(rounded))) : rounded;
    };
    StorePair(p.rounded_out + at, both, end(first), end(second));
  } else {
    const auto end = [&](float x) { return p.relu ? Rectified(x) : x; };
    StorePair(p.out + at, both, end(first), end(second));
  }
}

// Order of the blocks. Product: all column blocks of a tile are consecutive, so
// that blocks that run at the same time share rows and an expert. Gradient: by
// expert, then by rows of its matrix, then by columns.
constexpr int64_t BlocksAlong(int64_t size, int64_t of_tile) {
  return size / of_tile + (size % of_tile != 0);
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

// One block of a RaggedProduct. Tiles have at most Shape::kRows rows.
template <typename Shape, LinesAlong kB>
GSHARD_KERNEL_INLINE void RaggedProductBlock(const RaggedProduct<BFloat16>& p) {
  const int64_t across = BlocksAlong(p.n, Shape::kColumns);
  const RaggedTile tile = TileAt<Shape>(p, BlockIndex() / across);
  const int64_t first_column = BlockIndex() % across * Shape::kColumns;
  const BFloat16* const weights = p.weights + tile.expert * p.k * p.n;
  // `a` ends with the tile: the rows after it belong to another expert.
  const Lines<BFloat16> a = {p.rows, p.k, tile.first_row + tile.rows, p.k};
  const Lines<BFloat16> b = kB == LinesAlong::kK
                                ? Lines<BFloat16>{weights, p.k, p.n, p.k}
                                : Lines<BFloat16>{weights, p.n, p.k, p.n};
  TileProduct<Shape, LinesAlong::kK, kB>::Run(
      a, b, tile.first_row, first_column, p.k,
      [&](int row, int column, float first, float second) {
        StoreProduct(p, tile, first_column + column, row, first, second);
      });
}

template <typename Shape>
GSHARD_KERNEL_INLINE void RaggedProductBlock(const RaggedProduct<int8_t>& p) {
  const int64_t across = BlocksAlong(p.n, Shape::kColumns);
  const RaggedTile tile = TileAt<Shape>(p, BlockIndex() / across);
  const int64_t first_column = BlockIndex() % across * Shape::kColumns;
  const int8_t* const weights =
      p.weights + tile.expert * Int8MatrixBytes(p.k, p.n);
  // All columns of a warp are in this panel, which may be beyond the last one.
  const int64_t begin = first_column + Shape::WarpColumn();
  const Int8Panel<const int8_t> panel(weights + Int8PanelOffset(p.k, begin),
                                      p.k, Int8PanelWidth(p.n - begin));
  Int8Product<Shape>::Run(
      p.rows, tile.first_row + tile.rows, weights, tile.first_row, first_column,
      p.k, p.n,
      [&](int row) {
        return row < tile.rows ? p.row_scales[tile.first_row + row] : 0.0f;
      },
      [&](int column) {
        return first_column + column < p.n
                   ? reinterpret_cast<const float*>(
                         panel.scales)[column - Shape::WarpColumn()]
                   : 0.0f;
      },
      [&](int row, int column, float first, float second) {
        StoreProduct(p, tile, first_column + column, row, first, second);
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
        StoreProduct(p, tile, first_column + column, row, first, second);
      });
}

// The part of the result that a block of a RaggedWeightsGradient computes.
template <typename T>
struct WeightsGradientPlace {
  int64_t expert, row, column;  // of the expert's matrix [K, N]
  int64_t first, rows;          // the expert's first row, and their number

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
