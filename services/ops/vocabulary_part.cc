#include "services/ops/vocabulary_part.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/cast.h"
#include "services/ops/elementwise.h"
#include "services/ops/exp.h"
#include "services/ops/reuse.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

// How many of `words` are not padding.
int64_t WordsHere(VocabularyPart part, int64_t words) {
  return std::clamp<int64_t>(part.size - part.first, 0, words);
}

struct RowSums {
  float exp = 0.0f;
  float logits = 0.0f;
};

GSHARD_SIMD RowSums SumRow(const float* x, float max, int64_t size) {
  float exp = 0.0f, logits = 0.0f;
#pragma omp simd reduction(+ : exp, logits)
  for (int64_t i = 0; i < size; ++i) {
    exp += Exp(x[i] - max);
    logits += x[i];
  }
  return {exp, logits};
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

Tensor EmbeddingPart(const Tensor& table, const Tensor& ids,
                     VocabularyPart part) {
  const int64_t words = WordsHere(part, table.dim(0)), m = table.dim(1);
  Dims dims = ids.dims();
  dims.push_back(m);
  Tensor result = Tensor::Zeros(ElementType::kFloat32, dims);
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t row = ids.i32()[i] - part.first;
    if (row < 0 || row >= words) continue;
    float* const to = result.f32() + i * m;
    if (table.type() == ElementType::kBFloat16) {
      CastRow(table.data<BFloat16>() + row * m, to, m);
    } else {
      std::memcpy(to, table.f32() + row * m, m * sizeof(float));
    }
  }
  return result;
}

Tensor EmbeddingPartGradient(const Tensor& dresult, const Tensor& ids,
                             int64_t words, VocabularyPart part) {
  const int64_t m = dresult.dims().back();
  CHECK(dresult.size() == ids.size() * m);
  Tensor dtable = Tensor::Zeros(ElementType::kFloat32, {words, m});
  const int64_t here = WordsHere(part, words);
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t word = ids.i32()[i] - part.first;
    if (word < 0 || word >= here) continue;
    float* const row = dtable.f32() + word * m;
    AddRow(row, dresult.f32() + i * m, row, m);
  }
  return dtable;
}

Tensor CrossEntropySums(const Tensor& logits, const Tensor& labels,
                        const Tensor& max, VocabularyPart part) {
  const int64_t n = logits.dim(0), v = logits.dim(1);
  CHECK(labels.size() == n && max.size() == n);
  const int64_t here = WordsHere(part, v);
  Tensor sums = Tensor::Zeros(ElementType::kFloat32, {n, 3});
  for (int64_t r = 0; r < n; ++r) {
    const int32_t label = labels.i32()[r];
    if (label < 0) continue;
    const float* const row = logits.f32() + r * v;
    float* const out = sums.f32() + r * 3;
    const RowSums of_row = SumRow(row, max.f32()[r], here);
    out[0] = of_row.exp;
    out[1] = of_row.logits;
    const int64_t word = label - part.first;
    if (word >= 0 && word < here) out[2] = row[word];
  }
  return sums;
}

CrossEntropyResult CrossEntropyOfSums(const Tensor& sums, const Tensor& max,
                                      const Tensor& labels, int64_t vocabulary,
                                      const CrossEntropyOptions& options) {
  const int64_t n = labels.size();
  CHECK(sums.size() == 3 * n && max.size() == n);
  const float off = options.smoothing / static_cast<float>(vocabulary);
  Tensor log_sum_exp = Tensor::Zeros(ElementType::kFloat32, {n});
  double loss_sum = 0.0;
  for (int64_t r = 0; r < n; ++r) {
    if (labels.i32()[r] < 0) continue;
    const float* const of_row = sums.f32() + r * 3;
    log_sum_exp.f32()[r] = max.f32()[r] + std::log(of_row[0]);
    const double lse = log_sum_exp.f32()[r];
    loss_sum += lse - (1.0 - options.smoothing) * of_row[2] -
                static_cast<double>(off) * of_row[1] +
                options.z_loss * lse * lse;
  }
  return {Tensor::Scalar(static_cast<float>(loss_sum)), log_sum_exp};
}

Tensor CrossEntropyPartGradient(Tensor logits, const Tensor& labels,
                                const Tensor& log_sum_exp,
                                const CrossEntropyOptions& options,
                                const Tensor& dloss_sum, VocabularyPart part) {
  const int64_t n = logits.dim(0), v = logits.dim(1);
  CHECK(labels.size() == n && log_sum_exp.size() == n && dloss_sum.size() == 1);
  const int64_t here = WordsHere(part, v);
  const float upstream = dloss_sum.f32()[0];
  const float off =
      upstream * options.smoothing / static_cast<float>(part.size);
  Tensor dlogits = ReuseOrAllocate(logits);
  ParallelForChunks(n, ChunkSize(8 * v), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const drow = dlogits.f32() + r * v;
      const int32_t label = labels.i32()[r];
      CHECK(label < part.size);
      const int64_t filled = label < 0 ? 0 : here;
      if (filled > 0) {
        const float lse = log_sum_exp.f32()[r];
        GradientRow(logits.f32() + r * v, lse,
                    upstream * (1.0f + 2.0f * options.z_loss * lse), off, drow,
                    here);
        const int64_t word = label - part.first;
        if (word >= 0 && word < here) {
          drow[word] -= upstream * (1.0f - options.smoothing);
        }
      }
      std::fill(drow + filled, drow + v, 0.0f);
    }
  });
  return dlogits;
}

}  // namespace gshard
