// Dispatches tokens to the rows of experts and combines them back
// (services/moe/dispatch.h). Bit-identical to the CPU, except d_weight, which
// is summed by a warp.
//
// Letters: T tokens, R rows, M width.

#ifndef SERVICES_CUDA_KERNELS_TOKEN_ROWS_H_
#define SERVICES_CUDA_KERNELS_TOKEN_ROWS_H_

#include <cstdint>

#include "services/cuda/kernels/rows.h"

namespace gshard::cuda {

struct DispatchTokens {
  const float* x;             // [T, M]
  const int32_t* row_source;  // [R]
  int64_t width;
  FloatsOrRoundedOut rows;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    rows.Set(i, x[(row_source[i / width] >> 1) * width + i % width]);
  }
};

// y [T, M]: the sum of each token's rows, times their weights if given.
struct CombineTokens {
  FloatsOrRounded rows;
  const int32_t* row_of_choice;  // [T, 2], -1: no row
  const float* weight;           // [T, 2], or null: all 1
  int64_t width;
  float* y;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const int64_t token = i / width, column = i % width;
    float sum = 0.0f;
    bool any = false;
    for (int k = 0; k < 2; ++k) {
      const int64_t row = row_of_choice[2 * token + k];
      if (row < 0) continue;
      const float w = weight == nullptr ? 1.0f : weight[2 * token + k];
      const float product = w * rows[row * width + column];
      sum = any ? sum + product : product;
      any = true;
    }
    y[i] = sum;
  }
};

// Called for rows [0, R). d_weight is not written where a choice has no row;
// the caller sets it to zero.
struct CombineGradientRows {
  const float* dy;  // [T, M]
  FloatsOrRounded rows;
  const int32_t* row_source;  // [R]
  const float* weight;        // [T, 2]
  int64_t width;
  FloatsOrRoundedOut d_rows;
  float* d_weight;  // [T, 2]

  GSHARD_KERNEL_INLINE void operator()(int64_t row) const {
    const int32_t source = row_source[row];
    const float w = weight[source];
    float dot = 0.0f;
    for (int64_t c = Lane(); c < width; c += kWarp) {
      const float d = dy[(source >> 1) * width + c];
      dot += d * rows[row * width + c];
      d_rows.Set(row * width + c, w * d);
    }
    dot = WarpSum(dot);
    if (Lane() == 0) d_weight[source] = dot;
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_TOKEN_ROWS_H_
