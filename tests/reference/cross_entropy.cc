#include "tests/reference/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace gshard::reference {
namespace {

double LogSumExp(const float* row, int64_t v) {
  const double max = *std::max_element(row, row + v);
  double sum = 0.0;
  for (int64_t i = 0; i < v; ++i) sum += std::exp(row[i] - max);
  return max + std::log(sum);
}

double Target(const CrossEntropyOptions& options, int32_t label, int64_t i,
              int64_t v) {
  return options.smoothing / static_cast<double>(v) +
         (i == label ? 1.0 - options.smoothing : 0.0);
}

}  // namespace

CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& labels,
                                const CrossEntropyOptions& options) {
  const int64_t v = logits.dim(1);
  Tensor log_sum_exp = Tensor::Zeros(ElementType::kFloat32, {logits.dim(0)});
  double loss = 0.0;
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    const int32_t label = labels.i32()[r];
    if (label < 0) continue;
    const float* row = logits.f32() + r * v;
    const double lse = LogSumExp(row, v);
    log_sum_exp.f32()[r] = static_cast<float>(lse);
    for (int64_t i = 0; i < v; ++i) {
      loss -= Target(options, label, i, v) * (row[i] - lse);
    }
    loss += options.z_loss * lse * lse;
  }
  return {Tensor::Scalar(static_cast<float>(loss)), log_sum_exp};
}

Tensor CrossEntropyGradient(const Tensor& logits, const Tensor& labels,
                            const CrossEntropyOptions& options,
                            const Tensor& dloss_sum) {
  const int64_t v = logits.dim(1);
  Tensor dlogits = Tensor::Zeros(ElementType::kFloat32, logits.dims());
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    const int32_t label = labels.i32()[r];
    if (label < 0) continue;
    const float* row = logits.f32() + r * v;
    const double lse = LogSumExp(row, v);
    for (int64_t i = 0; i < v; ++i) {
      const double probability = std::exp(row[i] - lse);
      dlogits.f32()[r * v + i] =
          static_cast<float>(dloss_sum.f32()[0] *
                             (probability * (1.0 + 2.0 * options.z_loss * lse) -
                              Target(options, label, i, v)));
    }
  }
  return dlogits;
}

}  // namespace gshard::reference
