#include "services/ops/softmax.h"

#include <limits>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/exp.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

GSHARD_SIMD void SoftmaxRows(const float* x, float* y, int64_t rows,
                             int64_t size) {
  for (int64_t r = 0; r < rows; ++r, x += size, y += size) {
    float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < size; ++i) max = x[i] > max ? x[i] : max;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; ++i) {
      const float e = Exp(x[i] - max);
      y[i] = e;
      sum += e;
    }
    const float factor = 1.0f / sum;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) y[i] *= factor;
  }
}

GSHARD_SIMD void SoftmaxGradientRows(const float* y, const float* dy, float* dx,
                                     int64_t rows, int64_t size) {
  for (int64_t r = 0; r < rows; ++r, y += size, dy += size, dx += size) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; ++i) sum += y[i] * dy[i];
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) dx[i] = y[i] * (dy[i] - sum);
  }
}

int64_t Rows(const Tensor& x) {
  CHECK(x.rank() > 0);
  return x.size() == 0 ? 0 : x.size() / x.dims().back();
}

}  // namespace

GSHARD_SIMD SoftmaxStatistics SoftmaxRow(float* x, int64_t visible,
                                         int64_t padded, float scale) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t j = 0; j < visible; ++j) {
    x[j] *= scale;
    max = x[j] > max ? x[j] : max;
  }
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < visible; ++j) {
    const float e = Exp(x[j] - max);
    x[j] = e;
    sum += e;
  }
  const float factor = 1.0f / sum;
#pragma omp simd
  for (int64_t j = 0; j < visible; ++j) x[j] *= factor;
  for (int64_t j = visible; j < padded; ++j) x[j] = 0.0f;
  return visible > 0 ? SoftmaxStatistics{max, factor} : SoftmaxStatistics{};
}

GSHARD_SIMD void SoftmaxRowAgain(float* x, int64_t visible, int64_t padded,
                                 float scale, SoftmaxStatistics statistics) {
  // A loop of its own: in the next one the compiler would fuse the product with
  // the difference, which has other bits.
#pragma omp simd
  for (int64_t j = 0; j < visible; ++j) x[j] *= scale;
#pragma omp simd
  for (int64_t j = 0; j < visible; ++j) {
    x[j] = Exp(x[j] - statistics.max) * statistics.factor;
  }
  for (int64_t j = visible; j < padded; ++j) x[j] = 0.0f;
}

Tensor Softmax(Tensor x) {
  Tensor y = ReuseOrAllocate(x);
  const int64_t size = x.dims().back();
  ParallelForChunks(Rows(x), ChunkSize(8 * size), [&](int64_t r, int64_t end) {
    SoftmaxRows(x.f32() + r * size, y.f32() + r * size, end - r, size);
  });
  return y;
}

Tensor SoftmaxGradient(const Tensor& y, Tensor dy) {
  CHECK(y.size() == dy.size());
  Tensor dx = ReuseOrAllocate(dy);
  const int64_t size = dy.dims().back();
  ParallelForChunks(Rows(dy), ChunkSize(2 * size), [&](int64_t r, int64_t end) {
    SoftmaxGradientRows(y.f32() + r * size, dy.f32() + r * size,
                        dx.f32() + r * size, end - r, size);
  });
  return dx;
}

}  // namespace gshard
