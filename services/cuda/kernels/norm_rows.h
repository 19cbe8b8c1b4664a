// RMS norm (services/ops/rms_norm.h), one warp per row.

#ifndef SERVICES_CUDA_KERNELS_NORM_ROWS_H_
#define SERVICES_CUDA_KERNELS_NORM_ROWS_H_

#include <cmath>
#include <cstdint>

#include "services/cuda/kernels/rows.h"

namespace gshard::cuda {

struct RmsNormRows {
  const float* x;      // [rows, width]
  const float* scale;  // [width]
  int64_t width;
  float epsilon;
  float* y;
  float* inverse_rms;  // [rows]

  GSHARD_KERNEL_INLINE void operator()(int64_t row) const {
    const float* const from = x + row * width;
    float sum = 0.0f;
    for (int64_t i = Lane(); i < width; i += kWarp) sum += from[i] * from[i];
    const float inverse =
        1.0f / sqrtf(WarpSum(sum) / static_cast<float>(width) + epsilon);
    for (int64_t i = Lane(); i < width; i += kWarp) {
      y[row * width + i] = from[i] * inverse * scale[i];
    }
    if (Lane() == 0) inverse_rms[row] = inverse;
  }
};

struct RmsNormGradientRows {
  const float* x;
  const float* scale;
  const float* inverse_rms;
  const float* dy;
  int64_t width;
  float* dx;
  float* dscale;  // [rows, width]; the caller sums over the rows

  GSHARD_KERNEL_INLINE void operator()(int64_t row) const {
    const int64_t at = row * width;
    const float inverse = inverse_rms[row];
    float sum = 0.0f;
    for (int64_t i = Lane(); i < width; i += kWarp) {
      const float product = dy[at + i] * x[at + i];
      dscale[at + i] = product * inverse;
      sum += product * scale[i];
    }
    const float factor =
        WarpSum(sum) * inverse * inverse * inverse / static_cast<float>(width);
    for (int64_t i = Lane(); i < width; i += kWarp) {
      dx[at + i] = dy[at + i] * scale[i] * inverse - x[at + i] * factor;
    }
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_NORM_ROWS_H_
