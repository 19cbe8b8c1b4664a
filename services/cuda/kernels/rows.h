// Kernels by rows, one warp per row. Lane l processes elements l, l + 32, ...
// of the row, and the lanes' partial results are combined in a tree, so the
// bits of a row depend on its own elements only.

#ifndef SERVICES_CUDA_KERNELS_ROWS_H_
#define SERVICES_CUDA_KERNELS_ROWS_H_

#include <bit>
#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/elementwise.h"

namespace gshard::cuda {

inline constexpr int kRowsOfBlock = kElementThreads / kWarp;

GSHARD_KERNEL_INLINE int Lane() { return ThreadIndex() % kWarp; }

GSHARD_KERNEL_INLINE float ShuffleFloat(float x, int lane) {
  return std::bit_cast<float>(Shuffle(std::bit_cast<uint32_t>(x), lane));
}

GSHARD_KERNEL_INLINE int64_t ShuffleOffset(int64_t x, int lane) {
  const uint64_t high = Shuffle(static_cast<uint32_t>(x >> 32), lane);
  return static_cast<int64_t>(high << 32 |
                              Shuffle(static_cast<uint32_t>(x), lane));
}

// By a warp: the sum of x over the lanes, the same in all lanes.
GSHARD_KERNEL_INLINE float WarpSum(float x) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    x += ShuffleFloat(x, Lane() ^ apart);
  }
  return x;
}
GSHARD_KERNEL_INLINE float WarpMax(float x) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    const float other = ShuffleFloat(x, Lane() ^ apart);
    x = other > x ? other : x;
  }
  return x;
}

// Calls function(row) for rows [0, rows), each by one warp.
template <typename Function>
GSHARD_KERNEL_INLINE void RowsBlock(const Function& function, int64_t rows) {
  const int64_t step = NumBlocks() * kRowsOfBlock;
  for (int64_t row = BlockIndex() * kRowsOfBlock + ThreadIndex() / kWarp;
       row < rows; row += step) {
    function(row);
  }
}

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_ROWS_H_
