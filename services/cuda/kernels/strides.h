// Strided copies and reductions: for transposes, broadcasts, slices,
// concatenations, and sums and maxima over dimensions.

#ifndef SERVICES_CUDA_KERNELS_STRIDES_H_
#define SERVICES_CUDA_KERNELS_STRIDES_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"

namespace gshard::cuda {

inline constexpr int kMostDims = 8;

// Sizes and strides (in elements) of dimensions, outermost first.
struct Strides {
  int rank = 0;
  int64_t sizes[kMostDims] = {};
  int64_t strides[kMostDims] = {};

  constexpr void Add(int64_t size, int64_t stride) {
    sizes[rank] = size;
    strides[rank++] = stride;
  }
  // Offset of element i, counted in row-major order.
  constexpr int64_t At(int64_t i) const {
    int64_t at = 0;
    for (int d = rank - 1; d >= 0; --d) {
      at += i % sizes[d] * strides[d];
      i /= sizes[d];
    }
    return at;
  }
};

// Copies element i of `from` to element i of `to`, which have the same sizes.
template <typename T>
struct CopyStrided {
  const T* x;
  Strides from;
  Strides to;
  T* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    out[to.At(i)] = x[from.At(i)];
  }
};

struct FillZeros {
  float* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const { out[i] = 0.0f; }
};

// Elements that a thread reduces, one after the other. A larger reduction takes
// several passes, each of which reduces by this factor.
inline constexpr int64_t kReduced = 64;

// Element i = (part, k) of the result reduces elements
// [part * kReduced, (part + 1) * kReduced) of `reduced`, starting at element k
// of `kept`: to their sum, or to their maximum, which is NaN if one of them is.
struct ReduceStrided {
  enum class Op { kSum, kMax };
  Op op;
  const float* x;
  Strides kept;
  int64_t kept_size;
  Strides reduced;
  int64_t reduced_size;
  float* out;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const float* const from = x + kept.At(i % kept_size);
    const int64_t begin = i / kept_size * kReduced;
    const int64_t left = reduced_size - begin;
    const int64_t end = begin + (left < kReduced ? left : kReduced);
    float result = op == Op::kSum ? 0.0f : -__builtin_huge_valf();
    for (int64_t r = begin; r < end; ++r) {
      const float at = from[reduced.At(r)];
      if (op == Op::kSum) {
        result += at;
      } else {
        result = at > result || at != at ? at : result;
      }
    }
    out[i] = result;
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_STRIDES_H_
