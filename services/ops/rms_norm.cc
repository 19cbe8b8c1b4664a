#include "services/ops/rms_norm.h"

#include <cmath>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/elementwise.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

// Rows per partial sum of the scale's gradient; the partial sums are then added
// in order.
constexpr int64_t kRowsOfSum = 64;

GSHARD_SIMD void Forward(const float* x, const float* scale, float epsilon,
                         int64_t rows, int64_t m, float* y,
                         float* inverse_rms) {
  for (int64_t r = 0; r < rows; ++r, x += m, y += m) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < m; ++i) sum += x[i] * x[i];
    const float inverse =
        1.0f / std::sqrt(sum / static_cast<float>(m) + epsilon);
    inverse_rms[r] = inverse;
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) y[i] = x[i] * inverse * scale[i];
  }
}

GSHARD_SIMD void Backward(const float* x, const float* scale,
                          const float* inverse_rms, const float* dy,
                          int64_t rows, int64_t m, float* dx, float* dscale) {
  for (int64_t r = 0; r < rows; ++r, x += m, dy += m, dx += m) {
    const float inverse = inverse_rms[r];
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < m; ++i) {
      const float product = dy[i] * x[i];
      dscale[i] += product * inverse;
      sum += product * scale[i];
    }
    const float factor =
        sum * inverse * inverse * inverse / static_cast<float>(m);
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) {
      dx[i] = dy[i] * scale[i] * inverse - x[i] * factor;
    }
  }
}

}  // namespace

RmsNormResult RmsNorm(Tensor x, const Tensor& scale, float epsilon) {
  const int64_t m = x.dims().back();
  CHECK(scale.size() == m);
  Dims row_dims(x.dims().begin(), x.dims().end() - 1);
  Tensor inverse_rms(ElementType::kFloat32, row_dims);
  Tensor y = ReuseOrAllocate(x);
  const int64_t rows = inverse_rms.size();
  ParallelForChunks(rows, ChunkSize(2 * m), [&](int64_t r, int64_t end) {
    Forward(x.f32() + r * m, scale.f32(), epsilon, end - r, m, y.f32() + r * m,
            inverse_rms.f32() + r);
  });
  return {y, inverse_rms};
}

RmsNormGradients RmsNormGradient(const Tensor& x, const Tensor& scale,
                                 const Tensor& inverse_rms, Tensor dy) {
  const int64_t m = x.dims().back();
  CHECK(x.size() == dy.size() && inverse_rms.size() * m == x.size());
  const int64_t rows = inverse_rms.size();
  const int64_t parts = (rows + kRowsOfSum - 1) / kRowsOfSum;
  Tensor sums = Tensor::Zeros(ElementType::kFloat32, {parts, m});
  Tensor dx = ReuseOrAllocate(dy);
  ParallelForChunks(rows, kRowsOfSum, [&](int64_t r, int64_t end) {
    Backward(x.f32() + r * m, scale.f32(), inverse_rms.f32() + r,
             dy.f32() + r * m, end - r, m, dx.f32() + r * m,
             sums.f32() + r / kRowsOfSum * m);
  });
  const Tensor dscale = SumToSuffix(sums, {m});
  return {dx, dscale};
}

}  // namespace gshard
