// A tile of a float32 matrix product, computed in float32. It serves
// comparisons with CPU results, where the speed of tensor cores is not needed.
//
// Each element is one chain of fused multiply-adds over k, from 0 up.

#ifndef SERVICES_CUDA_KERNELS_FLOAT_PRODUCT_H_
#define SERVICES_CUDA_KERNELS_FLOAT_PRODUCT_H_

#include <cmath>
#include <cstdint>

#include "services/cuda/kernels/block.h"

namespace gshard::cuda {

struct FloatTile {
  static constexpr int kRows = 64;
  static constexpr int kColumns = 64;
  static constexpr int kDepth = 16;
  static constexpr int kThreads = 256;  // each computes 4 x 4 elements
  static constexpr int kSharedBytes = kDepth * (kRows + kColumns) * 4;

  // As TileProduct::Run, but a(row, k) and b(k, column) return elements, with
  // row and column counted from the tile's corner, or 0 outside the matrix.
  template <typename A, typename B, typename Store>
  static GSHARD_KERNEL_INLINE void Run(const A& a, const B& b, int64_t k,
                                       const Store& store) {
    float* const a_part = reinterpret_cast<float*>(SharedMemory());
    float* const b_part = a_part + kDepth * kRows;
    const int row = ThreadIndex() / 16 * 4, column = ThreadIndex() % 16 * 4;
    float sums[4][4] = {};
    for (int64_t at = 0; at < k; at += kDepth) {
      for (int i = ThreadIndex(); i < kDepth * kRows; i += kThreads) {
        const int64_t depth = at + i / kRows;
        a_part[i] = depth < k ? a(i % kRows, depth) : 0.0f;
        b_part[i] = depth < k ? b(depth, i % kColumns) : 0.0f;
      }
      Sync();
      for (int d = 0; d < kDepth; ++d) {
        GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
          GSHARD_UNROLL for (int j = 0; j < 4; ++j) {
            sums[i][j] = fmaf(a_part[d * kRows + row + i],
                              b_part[d * kColumns + column + j], sums[i][j]);
          }
        }
      }
      Sync();
    }
    GSHARD_UNROLL for (int i = 0; i < 4; ++i) {
      store(row + i, column, sums[i][0], sums[i][1]);
      store(row + i, column + 2, sums[i][2], sums[i][3]);
    }
  }

  static_assert(kRows == kColumns);  // Run() copies both in one loop
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_FLOAT_PRODUCT_H_
