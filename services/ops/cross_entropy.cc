#include "services/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/exp.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

struct RowSums {
  float log_sum_exp;
  float logits;
};

GSHARD_SIMD RowSums SumRow(const float* x, int64_t size) {
  float max = -std::numeric_limits<float>::infinity();
  float logits = 0.0f;
#pragma omp simd reduction(max : max) reduction(+ : logits)
  for (int64_t i = 0; i < size; ++i) {
    max = x[i] > max ? x[i] : max;
    logits += x[i];
  }
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += Exp(x[i] - max);
  return {max + std::log(sum), logits};
}

// dx = softmax * probability_factor - off, without the term of the label.
GSHARD_SIMD void GradientRow(const float* x, float log_sum_exp,
                             float probability_factor, float off, float* dx,
                             int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    dx[i] = Exp(x[i] - log_sum_exp) * probability_factor - off;
  }
}

}  // namespace

CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& labels,
                                const CrossEntropyOptions& options) {
  const int64_t n = logits.dim(0), v = logits.dim(1);
  CHECK(labels.size() == n);
  const float off = options.smoothing / static_cast<float>(v);
  Tensor log_sum_exp(ElementType::kFloat32, {n});
  std::vector<double> losses(n, 0.0);
  ParallelForChunks(n, ChunkSize(8 * v), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int32_t label = labels.i32()[r];
      CHECK(label < v);
      if (label < 0) {
        log_sum_exp.f32()[r] = 0.0f;
        continue;
      }
      const float* row = logits.f32() + r * v;
      const RowSums sums = SumRow(row, v);
      log_sum_exp.f32()[r] = sums.log_sum_exp;
      const double lse = sums.log_sum_exp;
      losses[r] = lse - (1.0 - options.smoothing) * row[label] -
                  static_cast<double>(off) * sums.logits +
                  options.z_loss * lse * lse;
    }
  });
  const double loss_sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  return {Tensor::Scalar(static_cast<float>(loss_sum)), log_sum_exp};
}

Tensor CrossEntropyGradient(Tensor logits, const Tensor& labels,
                            const Tensor& log_sum_exp,
                            const CrossEntropyOptions& options,
                            const Tensor& dloss_sum) {
  const int64_t n = logits.dim(0), v = logits.dim(1);
  CHECK(labels.size() == n && log_sum_exp.size() == n && dloss_sum.size() == 1);
  const float upstream = dloss_sum.f32()[0];
  const float off = upstream * options.smoothing / static_cast<float>(v);
  Tensor dlogits = ReuseOrAllocate(logits);
  ParallelForChunks(n, ChunkSize(8 * v), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* drow = dlogits.f32() + r * v;
      const int32_t label = labels.i32()[r];
      CHECK(label < v);
      if (label < 0) {
        std::fill_n(drow, v, 0.0f);
        continue;
      }
      const float lse = log_sum_exp.f32()[r];
      GradientRow(logits.f32() + r * v, lse,
                  upstream * (1.0f + 2.0f * options.z_loss * lse), off, drow,
                  v);
      drow[label] -= upstream * (1.0f - options.smoothing);
    }
  });
  return dlogits;
}

}  // namespace gshard
