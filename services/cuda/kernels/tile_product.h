// A tile of a product of matrices of bfloat16, with sums in float32, on tensor
// cores.
//
// k is never split, and each element is one chain of sums over k in steps of 16
// from its beginning, whatever the tile's shape: its bits do not depend on
// which tile computes it, nor on what is beside it in the tile.

#ifndef SERVICES_CUDA_KERNELS_TILE_PRODUCT_H_
#define SERVICES_CUDA_KERNELS_TILE_PRODUCT_H_

#include <cstdint>
#include <type_traits>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/tile_operand.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {

// Rows and columns of a tile, and the warps along each; the block has as many
// threads. kDepth elements of k are in each of kStages stages of shared memory,
// of which all but one are on their way while that one is computed with.
template <int kRowsOfTile, int kColumnsOfTile, int kRowWarps, int kColumnWarps>
struct TileShape {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kColumns = kColumnsOfTile;
  static constexpr int kWarpsAcross = kColumnWarps;
  static constexpr int kThreads = kRowWarps * kColumnWarps * kWarp;
  static constexpr int kDepth = 32;
  static constexpr int kStages = 4;
  // Fragments of a warp.
  static constexpr int kRowFragments = kRows / kRowWarps / 16;
  static constexpr int kColumnFragments = kColumns / kColumnWarps / 8;
  static_assert(kRowFragments > 0 && kColumnFragments % 2 == 0);
};

// For many rows, and for few, as when decoding: then the weights' way from
// memory counts, and nothing is computed for rows that are not there.
using LargeTile = TileShape<128, 128, 2, 4>;
using SmallTile = TileShape<16, 128, 1, 4>;

// Which way a factor's lines run.
enum class LinesAlong {
  kK,       // a is [rows, k], b is [columns, k]
  kAcross,  // a is [k, rows], b is [k, columns]
};

template <typename Shape, LinesAlong kA, LinesAlong kB>
class TileProduct {
 public:
  using OperandA = std::conditional_t<kA == LinesAlong::kK,
                                      TileOperand<Shape::kRows, Shape::kDepth>,
                                      TileOperand<Shape::kDepth, Shape::kRows>>;
  using OperandB =
      std::conditional_t<kB == LinesAlong::kK,
                         TileOperand<Shape::kColumns, Shape::kDepth>,
                         TileOperand<Shape::kDepth, Shape::kColumns>>;
  static constexpr int kStageBytes = OperandA::kBytes + OperandB::kBytes;
  static constexpr int kSharedBytes = Shape::kStages * kStageBytes;

  // Computes the tile that begins at `row` of a and `column` of b, and calls
  // store(row, column, first, second) for pairs of neighbours in a row, counted
  // from the tile's corner, with an even column. By all threads of the block.
  template <typename Store>
  static GSHARD_KERNEL_INLINE void Run(const Lines<BFloat16>& a,
                                       const Lines<BFloat16>& b, int64_t row,
                                       int64_t column, int64_t k,
                                       const Store& store) {
    const bool aligned = OperandA::IsAligned(a) && OperandB::IsAligned(b);
    const int64_t steps = (k + Shape::kDepth - 1) / Shape::kDepth;
    const auto copy = [&](int64_t step) {
      if (step < steps) {
        const int64_t at = step * Shape::kDepth;
        const bool a_along = kA == LinesAlong::kK;
        const bool b_along = kB == LinesAlong::kK;
        OperandA::Copy(a, a_along ? row : at, a_along ? at : row, aligned,
                       StageA(step));
        OperandB::Copy(b, b_along ? column : at, b_along ? at : column, aligned,
                       StageB(step));
      }
      CommitCopies();  // even if empty: groups are counted
    };

    float sums[Shape::kRowFragments][Shape::kColumnFragments][4] = {};
    for (int64_t step = 0; step < Shape::kStages - 1; ++step) copy(step);
    for (int64_t step = 0; step < steps; ++step) {
      WaitForCopies<Shape::kStages - 2>();
      // The stage is there for all, and the one before is free again.
      Sync();
      copy(step + Shape::kStages - 1);
      GSHARD_UNROLL for (int at = 0; at < Shape::kDepth; at += 16) {
        MultiplyStep(StageA(step), StageB(step), at, sums);
      }
    }

    const int lane = ThreadIndex() % kWarp;
    GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
      GSHARD_UNROLL for (int j = 0; j < Shape::kColumnFragments; ++j) {
        const int r = WarpRow() + i * 16 + lane / 4;
        const int c = WarpColumn() + j * 8 + lane % 4 * 2;
        store(r, c, sums[i][j][0], sums[i][j][1]);
        store(r + 8, c, sums[i][j][2], sums[i][j][3]);
      }
    }
  }

 private:
  static GSHARD_KERNEL_INLINE BFloat16* StageA(int64_t step) {
    return reinterpret_cast<BFloat16*>(SharedMemory() +
                                       step % Shape::kStages * kStageBytes);
  }
  static GSHARD_KERNEL_INLINE BFloat16* StageB(int64_t step) {
    return StageA(step) + OperandA::kBytes / 2;
  }
  static GSHARD_KERNEL_INLINE int WarpRow() {
    return ThreadIndex() / kWarp / Shape::kWarpsAcross * Shape::kRowFragments *
           16;
  }
  static GSHARD_KERNEL_INLINE int WarpColumn() {
    return ThreadIndex() / kWarp % Shape::kWarpsAcross *
           Shape::kColumnFragments * 8;
  }

  // Adds the products of k's elements [at, at + 16) of a stage.
  static GSHARD_KERNEL_INLINE void MultiplyStep(
      const BFloat16* a, const BFloat16* b, int at,
      float (&sums)[Shape::kRowFragments][Shape::kColumnFragments][4]) {
    const int lane = ThreadIndex() % kWarp;
    uint32_t a_parts[Shape::kRowFragments][4];
    GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
      const int row = WarpRow() + i * 16;
      if constexpr (kA == LinesAlong::kK) {
        // Matrices: rows 0 to 7, then 8 to 15, of k 0 to 7; the same of 8
        // to 15.
        LoadMatrices(a_parts[i], a + (row + lane % 16) * OperandA::kStride +
                                     at + lane / 16 * 8);
      } else {
        LoadMatricesTransposed(
            a_parts[i],
            a + (at + lane / 16 * 8 + lane % 8) * OperandA::kStride + row +
                lane / 8 % 2 * 8);
      }
    }
    uint32_t b_parts[Shape::kColumnFragments][2];
    GSHARD_UNROLL for (int j = 0; j < Shape::kColumnFragments; j += 2) {
      const int column = WarpColumn() + j * 8;
      uint32_t two[4];
      // Matrices: k 0 to 7, then 8 to 15, of columns 0 to 7; the same of 8 to
      // 15.
      if constexpr (kB == LinesAlong::kK) {
        LoadMatrices(
            two, b + (column + lane / 16 * 8 + lane % 8) * OperandB::kStride +
                     at + lane / 8 % 2 * 8);
      } else {
        LoadMatricesTransposed(two, b + (at + lane % 16) * OperandB::kStride +
                                        column + lane / 16 * 8);
      }
      b_parts[j][0] = two[0];
      b_parts[j][1] = two[1];
      b_parts[j + 1][0] = two[2];
      b_parts[j + 1][1] = two[3];
    }
    GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
      GSHARD_UNROLL for (int j = 0; j < Shape::kColumnFragments; ++j) {
        MultiplyAdd(sums[i][j], a_parts[i], b_parts[j]);
      }
    }
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_TILE_PRODUCT_H_
