#include "services/ops/cross_entropy.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/exp.h"
#include "services/ops/simd.h"
#include "services/ops/vocabulary_part.h"

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
  const VocabularyPart all{.first = 0, .size = logits.dim(1)};
  return CrossEntropyPartGradient(std::move(logits), labels, log_sum_exp,
                                  options, dloss_sum, all);
}

}  // namespace gshard
