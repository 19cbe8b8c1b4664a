// One tile of an int8 matrix product on tensor cores, summed exactly in int32.
//
// Rows are quantized by RoundRows; the matrix is in the panels of
// services/ops/int8_panel.h, as on CPUs. A 32-bit word there, four neighbours
// of a column, is a register of mma's operand b, so a warp loads its fragments
// from a copy of the panel.

#ifndef SERVICES_CUDA_KERNELS_INT8_PRODUCT_H_
#define SERVICES_CUDA_KERNELS_INT8_PRODUCT_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/tile_product.h"
#include "services/ops/int8_format.h"

namespace gshard::cuda {

// The distance in bytes between quantized rows of k elements, which end with
// zeros.
constexpr int64_t Int8RowBytes(int64_t k) { return (k + 15) / 16 * 16; }

// As many rows as bfloat16's tiles; each warp has the columns of one panel.
using LargeInt8Tile = TileShape<LargeTile::kRows, 96, 2, 2>;
using SmallInt8Tile = TileShape<SmallTile::kRows, 96, 1, 2>;

template <typename Shape>
class Int8Product {
 public:
  // Two int8 lie in place of one bfloat16: a step has 2 kDepth elements of k.
  using OperandA = TileOperand<Shape::kRows, Shape::kDepth, Shape::kThreads>;
  static constexpr int kStageBytes =
      OperandA::kBytes + Shape::kDepth / 2 * (Shape::kColumns + 8) * 4;
  static constexpr int kSharedBytes = Shape::kStages * kStageBytes;

  // TileProduct::Run for the tile whose corner is at row `row` of `rows`, which
  // end with row `end`, and at column `column`, a multiple of kColumns, of a
  // matrix [k, n] in `panels`. Sums are multiplied by the scales of their row
  // and column, which row_scale(row) and column_scale(column) return, counted
  // from the corner; they are called once for each of a thread's.
  template <typename RowScale, typename ColumnScale, typename Store>
  static GSHARD_KERNEL_INLINE void Run(const int8_t* rows, int64_t end,
                                       const int8_t* panels, int64_t row,
                                       int64_t column, int64_t k, int64_t n,
                                       const RowScale& row_scale,
                                       const ColumnScale& column_scale,
                                       const Store& store) {
    const int64_t length = Int8RowBytes(k) / 2;
    const Lines<BFloat16> a = {reinterpret_cast<const BFloat16*>(rows), length,
                               end, length};
    Sums sums = {};
    SumTile<Shape, kStageBytes, int32_t>(
        (length + Shape::kDepth - 1) / Shape::kDepth,
        [&](int64_t step, std::byte* stage) {
          OperandA::template Copy</*kAligned=*/true>(
              a, row, step * Shape::kDepth, PartA(stage));
          CopyPanels(panels, column, k, n, step * kWords, PartB(stage));
        },
        [](std::byte* stage, Sums& of_warp) {
          GSHARD_UNROLL for (int at = 0; at < Shape::kDepth; at += 16) {
            MultiplyStep(PartA(stage), PartB(stage), at, of_warp);
          }
        },
        sums);
    float of_rows[Shape::kRowFragments][2];
    float of_columns[Shape::kColumnFragments][2];
    GSHARD_UNROLL for (int at = 0; at < 2; ++at) {
      GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
        of_rows[i][at] = row_scale(Shape::Row(i, at));
      }
      GSHARD_UNROLL for (int j = 0; j < Shape::kColumnFragments; ++j) {
        of_columns[j][at] = column_scale(Shape::Column(j) + at);
      }
    }
    EachPair<Shape>([&](int i, int half, int j) {
      const auto scaled = [&](int at) {  // in the CPU's order
        return static_cast<float>(sums[i][j][2 * half + at]) *
               (of_rows[i][half] * of_columns[j][at]);
      };
      store(Shape::Row(i, half), Shape::Column(j), scaled(0), scaled(1));
    });
  }

 private:
  using Sums = TileSums<Shape, int32_t>;
  static constexpr int kPanel = kInt8PanelColumns;
  static_assert(Shape::kColumnFragments * 8 == kPanel);
  // Of a column in a stage.
  static constexpr int kWords = Shape::kDepth / 2;
  // Lane l reads word l % 4 of column l / 4: with this distance between words
  // of a column, bank 8 (l % 4) + l / 4, or 24 instead of 8, all different.
  static constexpr int kStride = Shape::kColumns + 8;
  static_assert(kStride % 32 == 8 || kStride % 32 == 24);

  static GSHARD_KERNEL_INLINE BFloat16* PartA(std::byte* stage) {
    return reinterpret_cast<BFloat16*>(stage);
  }
  static GSHARD_KERNEL_INLINE uint32_t* PartB(std::byte* stage) {
    return reinterpret_cast<uint32_t*>(stage + OperandA::kBytes);
  }

  // Starts to copy words [word, word + kWords) of the tile's columns, each
  // thread its share of one panel: neighbours, by 16 bytes. Zeros beyond the
  // end of the matrix.
  static GSHARD_KERNEL_INLINE void CopyPanels(const int8_t* panels,
                                              int64_t column, int64_t k,
                                              int64_t n, int64_t word,
                                              uint32_t* shared) {
    constexpr int kThreadsOfPanel = Shape::kThreads * kPanel / Shape::kColumns;
    constexpr int kChunks = kPanel / 4;
    static_assert(kWords * kChunks % kThreadsOfPanel == 0);
    const int panel = ThreadIndex() / kThreadsOfPanel * kPanel;
    const int64_t begin = column + panel;
    const int width =
        begin < n ? static_cast<int>(Int8PanelWidth(n - begin)) : 0;
    const int words = static_cast<int>((k + 3) / 4 - word);  // that are left
    const int8_t* const from =
        panels + Int8PanelOffset(k, begin) + word * width * 4;
    GSHARD_UNROLL for (int first = 0; first < kWords * kChunks;
                       first += kThreadsOfPanel) {
      const int i = first + ThreadIndex() % kThreadsOfPanel;
      const int w = i / kChunks, j = i % kChunks * 4;
      const bool is_there = j < width && w < words;
      CopyAsync(shared + w * kStride + panel + j,
                is_there ? from + (w * width + j) * 4 : panels, is_there);
    }
  }

  // Adds the products of elements [2 at, 2 at + 32) of a stage's k.
  static GSHARD_KERNEL_INLINE void MultiplyStep(const BFloat16* a,
                                                const uint32_t* b, int at,
                                                Sums& sums) {
    const int lane = ThreadIndex() % kWarp;
    uint32_t a_parts[Shape::kRowFragments][4];
    GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
      OperandA::LoadFragment(a, Shape::WarpRow() + i * 16, at, a_parts[i]);
    }
    const uint32_t* const of_lane =
        b + (at / 2 + lane % 4) * kStride + Shape::WarpColumn() + lane / 4;
    GSHARD_UNROLL for (int j = 0; j < Shape::kColumnFragments; ++j) {
      const uint32_t b_parts[2] = {of_lane[j * 8],
                                   of_lane[j * 8 + 4 * kStride]};
      GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
        MultiplyAddInt8(sums[i][j], a_parts[i], b_parts);
      }
    }
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_INT8_PRODUCT_H_
