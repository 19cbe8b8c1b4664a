#include "services/ops/layer_norm.h"

#include <cmath>

#include "services/base/check.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

GSHARD_SIMD void Forward(const float* x, const float* scale, const float* bias,
                         float epsilon, int64_t rows, int64_t m, float* y,
                         float* means, float* inverse_stds) {
  for (int64_t r = 0; r < rows; ++r, x += m, y += m) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < m; ++i) sum += x[i];
    const float mean = sum / static_cast<float>(m);
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < m; ++i) {
      squares += (x[i] - mean) * (x[i] - mean);
    }
    const float inverse =
        1.0f / std::sqrt(squares / static_cast<float>(m) + epsilon);
    means[r] = mean;
    inverse_stds[r] = inverse;
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) {
      y[i] = (x[i] - mean) * inverse * scale[i] + bias[i];
    }
  }
}

GSHARD_SIMD void Backward(const float* x, const float* scale,
                          const float* means, const float* inverse_stds,
                          const float* dy, int64_t rows, int64_t m, float* dx,
                          float* dscale, float* dbias) {
  for (int64_t r = 0; r < rows; ++r, x += m, dy += m, dx += m) {
    const float mean = means[r], inverse = inverse_stds[r];
    // Sums of the gradient of the normalised x, alone and times it.
    float sum = 0.0f, dot = 0.0f;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < m; ++i) {
      const float normalised = (x[i] - mean) * inverse;
      const float gradient = dy[i] * scale[i];
      dscale[i] += dy[i] * normalised;
      dbias[i] += dy[i];
      sum += gradient;
      dot += gradient * normalised;
    }
    const float mean_sum = sum / static_cast<float>(m);
    const float mean_dot = dot / static_cast<float>(m);
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) {
      const float normalised = (x[i] - mean) * inverse;
      dx[i] = inverse * (dy[i] * scale[i] - mean_sum - normalised * mean_dot);
    }
  }
}

}  // namespace

LayerNormResult LayerNorm(Tensor x, const Tensor& scale, const Tensor& bias,
                          float epsilon) {
  const int64_t m = x.dims().back();
  CHECK(scale.size() == m && bias.size() == m);
  Dims row_dims(x.dims().begin(), x.dims().end() - 1);
  Tensor mean(ElementType::kFloat32, row_dims);
  Tensor inverse_std(ElementType::kFloat32, row_dims);
  Tensor y = ReuseOrAllocate(x);
  Forward(x.f32(), scale.f32(), bias.f32(), epsilon, mean.size(), m, y.f32(),
          mean.f32(), inverse_std.f32());
  return {y, mean, inverse_std};
}

LayerNormGradients LayerNormGradient(const Tensor& x, const Tensor& scale,
                                     const Tensor& mean,
                                     const Tensor& inverse_std, Tensor dy) {
  const int64_t m = x.dims().back();
  CHECK(x.size() == dy.size() && mean.size() * m == x.size() &&
        inverse_std.size() == mean.size());
  Tensor dscale = Tensor::Zeros(ElementType::kFloat32, {m});
  Tensor dbias = Tensor::Zeros(ElementType::kFloat32, {m});
  Tensor dx = ReuseOrAllocate(dy);
  Backward(x.f32(), scale.f32(), mean.f32(), inverse_std.f32(), dy.f32(),
           mean.size(), m, dx.f32(), dscale.f32(), dbias.f32());
  return {dx, dscale, dbias};
}

}  // namespace gshard
