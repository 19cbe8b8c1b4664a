// One tile of a matrix product on tensor cores: the steps that all types share,
// and the product of bfloat16, accumulated in float32.
//
// k is never split: each element is one chain of sums over k from 0 up, in
// steps of 16, whatever the tile's shape. So the bits of an element depend
// neither on which tile computes it nor on the rest of the tile.

#ifndef SERVICES_CUDA_KERNELS_TILE_PRODUCT_H_
#define SERVICES_CUDA_KERNELS_TILE_PRODUCT_H_

#include <cstdint>
#include <type_traits>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/tile_operand.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {

// Size of a tile, and number of warps along its rows and columns; the block has
// exactly these threads. Shared memory holds kStages stages of kDepth elements
// of k each: one is being computed with while the others are being copied.
template <int kRowsOfTile, int kColumnsOfTile, int kRowWarps, int kColumnWarps>
struct TileShape {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kColumns = kColumnsOfTile;
  static constexpr int kWarpsAcross = kColumnWarps;
  static constexpr int kThreads = kRowWarps * kColumnWarps * kWarp;
  static constexpr int kDepth = 32;
  static constexpr int kStages = 4;
  // mma fragments per warp.
  static constexpr int kRowFragments = kRows / kRowWarps / 16;
  static constexpr int kColumnFragments = kColumns / kColumnWarps / 8;
  static_assert(kRowFragments > 0 && kColumnFragments > 0);

  // Where the part of this thread's warp begins.
  static GSHARD_KERNEL_INLINE int WarpRow() {
    return ThreadIndex() / kWarp / kWarpsAcross * kRowFragments * 16;
  }
  static GSHARD_KERNEL_INLINE int WarpColumn() {
    return ThreadIndex() / kWarp % kWarpsAcross * kColumnFragments * 8;
  }
};

// LargeTile is for many rows. SmallTile is for few, as in decoding, where
// reading the weights from memory takes most of the time: it avoids computing
// rows that do not exist.
using LargeTile = TileShape<128, 128, 2, 4>;
using SmallTile = TileShape<16, 128, 1, 4>;

// Direction of an operand's lines.
enum class LinesAlong {
  kK,       // a is [rows, k], b is [columns, k]
  kAcross,  // a is [k, rows], b is [k, columns]
};

// Computes a tile in `steps` steps of k. copy(step, stage) starts to copy what
// a step multiplies, each thread its share, into `stage`, kStageBytes bytes of
// shared memory. multiply(stage, sums) adds the products of this warp to its
// fragments, of type Sum. Then calls store(row, column, first, second) for
// pairs of neighbouring elements of a row, where row and column count from the
// tile's corner and column is even. By all threads of the block.
template <typename Shape, int kStageBytes, typename Sum, typename Copy,
          typename Multiply, typename Store>
GSHARD_KERNEL_INLINE void RunTile(int64_t steps, const Copy& copy,
                                  const Multiply& multiply,
                                  const Store& store) {
  const auto stage = [](int64_t step) {
    return SharedMemory() + step % Shape::kStages * kStageBytes;
  };
  const auto start = [&](int64_t step) {
    if (step < steps) copy(step, stage(step));
    CommitCopies();  // even if empty: WaitForCopies counts groups
  };
  Sum sums[Shape::kRowFragments][Shape::kColumnFragments][4] = {};
  for (int64_t step = 0; step < Shape::kStages - 1; ++step) start(step);
  for (int64_t step = 0; step < steps; ++step) {
    WaitForCopies<Shape::kStages - 2>();
    // This stage has arrived for all threads, and all are done with the
    // previous one, whose buffer the next copy overwrites.
    Sync();
    start(step + Shape::kStages - 1);
    multiply(stage(step), sums);
  }

  const int lane = ThreadIndex() % kWarp;
  GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
    GSHARD_UNROLL for (int j = 0; j < Shape::kColumnFragments; ++j) {
      const int r = Shape::WarpRow() + i * 16 + lane / 4;
      const int c = Shape::WarpColumn() + j * 8 + lane % 4 * 2;
      store(r, c, sums[i][j][0], sums[i][j][1]);
      store(r + 8, c, sums[i][j][2], sums[i][j][3]);
    }
  }
}

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

  // RunTile for the tile whose corner is at `row` of a and `column` of b.
  template <typename Store>
  static GSHARD_KERNEL_INLINE void Run(const Lines<BFloat16>& a,
                                       const Lines<BFloat16>& b, int64_t row,
                                       int64_t column, int64_t k,
                                       const Store& store) {
    const bool aligned = OperandA::IsAligned(a) && OperandB::IsAligned(b);
    RunTile<Shape, kStageBytes, float>(
        (k + Shape::kDepth - 1) / Shape::kDepth,
        [&](int64_t step, std::byte* stage) {
          const int64_t at = step * Shape::kDepth;
          const bool a_along = kA == LinesAlong::kK;
          const bool b_along = kB == LinesAlong::kK;
          OperandA::Copy(a, a_along ? row : at, a_along ? at : row, aligned,
                         PartA(stage));
          OperandB::Copy(b, b_along ? column : at, b_along ? at : column,
                         aligned, PartB(stage));
        },
        [](std::byte* stage, Sums& sums) {
          GSHARD_UNROLL for (int at = 0; at < Shape::kDepth; at += 16) {
            MultiplyStep(PartA(stage), PartB(stage), at, sums);
          }
        },
        store);
  }

 private:
  static_assert(Shape::kColumnFragments % 2 == 0);
  using Sums = float[Shape::kRowFragments][Shape::kColumnFragments][4];

  static GSHARD_KERNEL_INLINE BFloat16* PartA(std::byte* stage) {
    return reinterpret_cast<BFloat16*>(stage);
  }
  static GSHARD_KERNEL_INLINE BFloat16* PartB(std::byte* stage) {
    return PartA(stage + OperandA::kBytes);
  }

  // Adds the products of elements [at, at + 16) of a stage's k.
  static GSHARD_KERNEL_INLINE void MultiplyStep(const BFloat16* a,
                                                const BFloat16* b, int at,
                                                Sums& sums) {
    const int lane = ThreadIndex() % kWarp;
    uint32_t a_parts[Shape::kRowFragments][4];
    GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
      const int row = Shape::WarpRow() + i * 16;
      if constexpr (kA == LinesAlong::kK) {
        OperandA::LoadFragment(a, row, at, a_parts[i]);
      } else {
        LoadMatricesTransposed(
            a_parts[i],
            a + (at + lane / 16 * 8 + lane % 8) * OperandA::kStride + row +
                lane / 8 % 2 * 8);
      }
    }
    uint32_t b_parts[Shape::kColumnFragments][2];
    GSHARD_UNROLL for (int j = 0; j < Shape::kColumnFragments; j += 2) {
      const int column = Shape::WarpColumn() + j * 8;
      uint32_t two[4];
      // The four matrices: k 0 to 7 and k 8 to 15 for columns 0 to 7, then both
      // for columns 8 to 15.
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
