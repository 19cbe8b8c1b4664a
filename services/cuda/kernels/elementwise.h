// Kernels without matrix products: biases and the elementwise operators on the
// rows of experts. All pointers are device pointers. Results are bit-identical
// to those of the counterparts in services/ops.

#ifndef SERVICES_CUDA_KERNELS_ELEMENTWISE_H_
#define SERVICES_CUDA_KERNELS_ELEMENTWISE_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/ragged_product.h"
#include "services/cuda/kernels/ragged_tiles.h"
#include "services/ops/dropout_mask.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {

// Threads per block of these kernels.
inline constexpr int kElementThreads = 256;

// This thread's first element, and the distance to its next one.
GSHARD_KERNEL_INLINE int64_t FirstElement() {
  return BlockIndex() * BlockThreads() + ThreadIndex();
}
GSHARD_KERNEL_INLINE int64_t ElementStride() {
  return NumBlocks() * BlockThreads();
}

// Elements of either type: exactly one pointer is not null.
struct FloatsOrRounded {
  const float* floats;
  const BFloat16* rounded;

  GSHARD_KERNEL_INLINE float operator[](int64_t i) const {
    return floats != nullptr ? floats[i] : ToFloat(rounded[i]);
  }
};
struct FloatsOrRoundedOut {
  float* floats;
  BFloat16* rounded;

  GSHARD_KERNEL_INLINE void Set(int64_t i, float x) const {
    if (floats != nullptr) {
      floats[i] = x;
    } else {
      rounded[i] = ToBFloat16(x);
    }
  }
};

// Four neighbours that are read or written at once, of float32 or bfloat16. The
// address is a multiple of their size.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};
template <typename T>
GSHARD_KERNEL_INLINE bool AreFours(const T* x) {
  return reinterpret_cast<uintptr_t>(x) % sizeof(Four<T>) == 0;
}

struct CastToBf16 {
  const float* x;
  BFloat16* out;

  GSHARD_KERNEL_INLINE BFloat16 Of(int64_t i) const { return ToBFloat16(x[i]); }
};

struct CastToFloat {
  const BFloat16* x;
  float* out;

  GSHARD_KERNEL_INLINE float Of(int64_t i) const { return ToFloat(x[i]); }
};

struct Relu {
  const float* x;
  float* out;

  GSHARD_KERNEL_INLINE float Of(int64_t i) const { return Rectified(x[i]); }
};

struct ReluBf16 {
  const BFloat16* x;
  BFloat16* out;

  GSHARD_KERNEL_INLINE BFloat16 Of(int64_t i) const {
    const BFloat16 at = x[i];
    return ToFloat(at) < 0.0f ? BFloat16() : at;
  }
};

// `y` is the output of relu, in either type: one of the two pointers is null.
struct ReluGradient {
  const float* y;
  const BFloat16* rounded_y;
  const float* dy;
  float* out;

  GSHARD_KERNEL_INLINE float Of(int64_t i) const {
    const float at = y != nullptr ? y[i] : ToFloat(rounded_y[i]);
    const float gradient = dy[i];
    return at > 0.0f ? gradient : 0.0f;
  }
};

// DropoutRowsPart (services/ops/dropout.h): x [R, width] holds columns
// [first_column, first_column + width) of a tensor with `columns` columns.
struct DropoutRows {
  const float* x;
  const int32_t* rows;  // [R], not negative
  int64_t width;
  int64_t first_column;
  int64_t columns;
  DropoutMask mask;
  float* out;

  GSHARD_KERNEL_INLINE float Of(int64_t i) const {
    const int64_t row = rows[i / width];
    const auto index =
        static_cast<uint64_t>(row * columns + first_column + i % width);
    return x[i] * mask.Factor(index);
  }
};

// Calls function(i) for elements [0, size), or sets element i of function.out
// to function.Of(i): several at once, whose operands are all on their way from
// memory before the first result is stored.
template <typename Function>
GSHARD_KERNEL_INLINE void ElementsBlock(const Function& function,
                                        int64_t size) {
  const int64_t stride = ElementStride();
  int64_t i = FirstElement();
  if constexpr (requires { function.Of(i); }) {
    constexpr int kAtOnce = 4;
    for (; i + (kAtOnce - 1) * stride < size; i += kAtOnce * stride) {
      decltype(function.Of(i)) results[kAtOnce];
      GSHARD_UNROLL for (int k = 0; k < kAtOnce; ++k) {
        results[k] = function.Of(i + k * stride);
      }
      GSHARD_UNROLL for (int k = 0; k < kAtOnce; ++k) {
        function.out[i + k * stride] = results[k];
      }
    }
    for (; i < size; i += stride) function.out[i] = function.Of(i);
  } else {
    for (; i < size; i += stride) function(i);
  }
}

// out = rows [R, N] plus the bias [E, N] of each row's expert. One block per
// tile.
struct RaggedBiasAdd {
  const float* rows;
  const float* bias;
  const RaggedTile* tiles;
  int64_t num_tiles;
  int64_t n;
  float* out;
};

GSHARD_KERNEL_INLINE void RaggedBiasAddBlock(const RaggedBiasAdd& add) {
  const RaggedTile tile = add.tiles[BlockIndex()];
  const int64_t at = tile.first_row * add.n;
  for (int64_t i = ThreadIndex(); i < tile.rows * add.n; i += BlockThreads()) {
    add.out[at + i] =
        add.rows[at + i] + add.bias[tile.expert * add.n + i % add.n];
  }
}

// out [E, N] = the sums of each expert's rows of dresult [R, N], added in their
// order. One block per expert and kElementThreads columns.
struct RaggedBiasGradient {
  const float* dresult;
  const int64_t* offsets;  // GroupOffsets
  int64_t experts;
  int64_t n;
  float* out;
};

constexpr int64_t BlocksOf(const RaggedBiasGradient& g) {
  return g.experts * BlocksAlong(g.n, kElementThreads);
}

GSHARD_KERNEL_INLINE void RaggedBiasGradientBlock(const RaggedBiasGradient& g) {
  const int64_t across = BlocksAlong(g.n, kElementThreads);
  const int64_t expert = BlockIndex() / across;
  const int64_t column =
      BlockIndex() % across * kElementThreads + ThreadIndex();
  if (column >= g.n) return;
  float sum = 0.0f;
  for (int64_t r = g.offsets[expert]; r < g.offsets[expert + 1]; ++r) {
    sum += g.dresult[r * g.n + column];
  }
  g.out[expert * g.n + column] = sum;
}

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_ELEMENTWISE_H_
