#include "services/ops/layer_norm.h"

#include <algorithm>
#include <cmath>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/elementwise.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

// Rows per partial sum of the parameters' gradients; the partial sums are then
// added in order.
constexpr int64_t kRowsOfSum = 64;

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
    // The sum of the gradient of the normalised x, and its dot product with the
    // normalised x.
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
  ParallelForChunks(mean.size(), ChunkSize(4 * m), [&](int64_t r, int64_t end) {
    Forward(x.f32() + r * m, scale.f32(), bias.f32(), epsilon, end - r, m,
            y.f32() + r * m, mean.f32() + r, inverse_std.f32() + r);
  });
  return {y, mean, inverse_std};
}

LayerNormGradients LayerNormGradient(const Tensor& x, const Tensor& scale,
                                     const Tensor& mean,
                                     const Tensor& inverse_std, Tensor dy) {
  const int64_t m = x.dims().back();
  CHECK(x.size() == dy.size() && mean.size() * m == x.size() &&
        inverse_std.size() == mean.size());
  const int64_t rows = mean.size();
  const int64_t parts = (rows + kRowsOfSum - 1) / kRowsOfSum;
  Tensor sums = Tensor::Zeros(ElementType::kFloat32, {parts, 2 * m});
  Tensor dx = ReuseOrAllocate(dy);
  ParallelForChunks(rows, kRowsOfSum, [&](int64_t r, int64_t end) {
    float* const sum = sums.f32() + r / kRowsOfSum * 2 * m;
    Backward(x.f32() + r * m, scale.f32(), mean.f32() + r,
             inverse_std.f32() + r, dy.f32() + r * m, end - r, m,
             dx.f32() + r * m, sum, sum + m);
  });
  const Tensor sum = SumToSuffix(sums, {2 * m});
  Tensor dscale(ElementType::kFloat32, {m}), dbias(ElementType::kFloat32, {m});
  std::copy_n(sum.f32(), m, dscale.f32());
  std::copy_n(sum.f32() + m, m, dbias.f32());
  return {dx, dscale, dbias};
}

}  // namespace gshard
