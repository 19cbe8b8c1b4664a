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
  // Where pair `half` of this thread's elements of fragment (i, j) is: two
  // neighbours of a row, from an even column on (block.h).
  static GSHARD_KERNEL_INLINE int Row(int i, int half) {
    return WarpRow() + i * 16 + half * 8 + ThreadIndex() % kWarp / 4;
  }
  static GSHARD_KERNEL_INLINE int Column(int j) {
    return WarpColumn() + j * 8 + ThreadIndex() % 4 * 2;
  }
};

// LargeTile is for many rows. SmallTile is for few, as in decoding, where
// reading the weights from memory takes most of the time: it avoids computing
// rows that do not exist.
using LargeTile = TileShape<128, 128, 2, 2>;
using SmallTile = TileShape<16, 128, 1, 4>;

// Direction of an operand's lines.
enum class LinesAlong {
  kK,       // a is [rows, k], b is [columns, k]
  kAcross,  // a is [k, rows], b is [k, columns]
};

// A thread's elements of a tile, by fragment.
template <typename Shape, typename T>
using TileSums = T[Shape::kRowFragments][Shape::kColumnFragments][4];

// Adds up a tile in `steps` steps of k. copy(step, stage) starts to copy what a
// step multiplies, each thread its share, into `stage`, kStageBytes bytes of
// shared memory. multiply(stage, sums) adds the products of this warp to its
// fragments. By all threads of the block.
template <typename Shape, int kStageBytes, typename T, typename Copy,
          typename Multiply>
GSHARD_KERNEL_INLINE void SumTile(int64_t steps, const Copy& copy,
                                  const Multiply& multiply,
                                  TileSums<Shape, T>& sums) {
  const auto stage = [](int64_t step) {
    return SharedMemory() + step % Shape::kStages * kStageBytes;
  };
  const auto start = [&](int64_t step) {
    if (step < steps) copy(step, stage(step));
    CommitCopies();  // even if empty: WaitForCopies counts groups
  };
  for (int64_t step = 0; step < Shape::kStages - 1; ++step) start(step);
  for (int64_t step = 0; step < steps; ++step) {
    WaitForCopies<Shape::kStages - 2>();
    // This stage has arrived for all threads, and all are done with the
    // previous one, whose buffer the next copy overwrites.
    Sync();
    start(step + Shape::kStages - 1);
    multiply(stage(step), sums);
  }
}

// Calls visit(i, half, j) for the pairs of this thread's elements.
template <typename Shape, typename Function>
GSHARD_KERNEL_INLINE void EachPair(const Function& visit) {
  GSHARD_UNROLL for (int i = 0; i < Shape::kRowFragments; ++i) {
    GSHARD_UNROLL for (int half = 0; half < 2; ++half) {
      GSHARD_UNROLL for (int j = 0; j < Shape::kColumnFragments; ++j) {
        visit(i, half, j);
      }
    }
  }
}

template <typename Shape, LinesAlong kA, LinesAlong kB>
class TileProduct {
  template <LinesAlong kAlong, int kSize>
  using Operand =
      std::conditional_t<kAlong == LinesAlong::kK,
                         TileOperand<kSize, Shape::kDepth, Shape::kThreads>,
                         TileOperand<Shape::kDepth, kSize, Shape::kThreads>>;

 public:
  using OperandA = Operand<kA, Shape::kRows>;
  using OperandB = Operand<kB, Shape::kColumns>;
  static constexpr int kStageBytes = OperandA::kBytes + OperandB::kBytes;
  static constexpr int kSharedBytes = Shape::kStages * kStageBytes;

  // Computes the tile whose corner is at `row` of a and `column` of b. Then
  // calls store(row, column, first, second) for pairs of neighbouring elements
  // of a row, where row and column count from the corner and column is even. By
  // all threads of the block.
  template <typename Store>
  static GSHARD_KERNEL_INLINE void Run(const Lines<BFloat16>& a,
                                       const Lines<BFloat16>& b, int64_t row,
                                       int64_t column, int64_t k,
                                       const Store& store) {
    Sums sums = {};
    if (OperandA::IsAligned(a) && OperandB::IsAligned(b)) {
      Sum</*kAligned=*/true>(a, b, row, column, k, sums);
    } else {
      Sum</*kAligned=*/false>(a, b, row, column, k, sums);
    }
    EachPair<Shape>([&](int i, int half, int j) {
      store(Shape::Row(i, half), Shape::Column(j), sums[i][j][2 * half],
            sums[i][j][2 * half + 1]);
    });
  }

 private:
  static_assert(Shape::kColumnFragments % 2 == 0);
  using Sums = TileSums<Shape, float>;

  static GSHARD_KERNEL_INLINE BFloat16* PartA(std::byte* stage) {
    return reinterpret_cast<BFloat16*>(stage);
  }
  static GSHARD_KERNEL_INLINE BFloat16* PartB(std::byte* stage) {
    return PartA(stage + OperandA::kBytes);
  }

  template <bool kAligned>
  static GSHARD_KERNEL_INLINE void Sum(const Lines<BFloat16>& a,
                                       const Lines<BFloat16>& b, int64_t row,
                                       int64_t column, int64_t k, Sums& sums) {
    SumTile<Shape, kStageBytes, float>(
        (k + Shape::kDepth - 1) / Shape::kDepth,
        [&](int64_t step, std::byte* stage) {
          const int64_t at = step * Shape::kDepth;
          const bool a_along = kA == LinesAlong::kK;
          const bool b_along = kB == LinesAlong::kK;
          OperandA::template Copy<kAligned>(a, a_along ? row : at,
                                            a_along ? at : row, PartA(stage));
          OperandB::template Copy<kAligned>(
              b, b_along ? column : at, b_along ? at : column, PartB(stage));
        },
        [](std::byte* stage, Sums& of_warp) {
          GSHARD_UNROLL for (int i = 0; i < Shape::kDepth; i += 16) {
            MultiplyStep(PartA(stage), PartB(stage), i, of_warp);
          }
        },
        sums);
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
