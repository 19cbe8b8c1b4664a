// Elementwise arithmetic, bit-identical to services/ops.

#ifndef SERVICES_CUDA_KERNELS_ARITHMETIC_H_
#define SERVICES_CUDA_KERNELS_ARITHMETIC_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/ops/dropout_mask.h"
#include "services/ops/exp.h"

namespace gshard::cuda {

// out = a op b. b has b_size elements; its dimensions are the last ones of a.
struct Binary {
  enum class Op { kAdd, kSubtract, kMultiply, kDivide };
  Op op;
  const float* a;
  const float* b;
  int64_t b_size;
  float* out;

  GSHARD_KERNEL_INLINE float Of(int64_t i) const {
    const float x = a[i], y = b[i < b_size ? i : i % b_size];
    return op == Op::kAdd        ? x + y
           : op == Op::kSubtract ? x - y
           : op == Op::kMultiply ? x * y
                                 : x / y;
  }
};

struct ScaleBy {
  const float* x;
  float factor;
  float* out;

  GSHARD_KERNEL_INLINE float Of(int64_t i) const { return x[i] * factor; }
};

struct Exponential {
  const float* x;
  float* out;

  GSHARD_KERNEL_INLINE float Of(int64_t i) const { return Exp(x[i]); }
};

// Drops element i as Dropout() in services/ops/dropout.h does.
struct DropElements {
  const float* x;
  DropoutMask mask;
  float* out;

  GSHARD_KERNEL_INLINE float Of(int64_t i) const {
    return x[i] * mask.Factor(i);
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_ARITHMETIC_H_
