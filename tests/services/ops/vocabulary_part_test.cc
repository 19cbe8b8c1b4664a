#include "services/ops/vocabulary_part.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "services/ops/concat.h"
#include "services/ops/elementwise.h"
#include "services/ops/embedding.h"
#include "services/ops/reduce_max.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr int64_t kWords = 11, kRows = 6;

Tensor Ids(bool padding) {
  Tensor ids(ElementType::kInt32, {kRows});
  const std::vector<int32_t> values = {0, 10, 4, padding ? -1 : 4, 7, 3};
  std::copy(values.begin(), values.end(), ids.i32());
  return ids;
}

// Part i of n along `dim`, padded with NaN.
Tensor Part(const Tensor& x, int dim, int64_t i, int64_t size) {
  const int64_t end = std::min((i + 1) * size, kWords);
  const int64_t begin = std::min(i * size, end);
  Dims padding = x.dims();
  padding[dim] = size - (end - begin);
  Tensor nan(ElementType::kFloat32, padding);
  std::fill_n(nan.f32(), nan.size(), std::numeric_limits<float>::quiet_NaN());
  return Concat(std::vector<Tensor>{Slice(x, dim, begin, end), nan}, dim);
}

int64_t SizeOf(int64_t parts) { return (kWords + parts - 1) / parts; }

TEST(VocabularyPartTest, LookupsAddUp) {
  const Tensor table = RandomTensor({kWords, 5}, 1);
  const Tensor dy = RandomTensor({kRows, 5}, 2);
  const Tensor whole = EmbeddingGradient(dy, Ids(false), kWords);
  for (const int64_t parts : {1, 2, 3, 4, 8}) {
    const int64_t size = SizeOf(parts);
    Tensor sum = Tensor::Zeros(ElementType::kFloat32, {kRows, 5});
    std::vector<Tensor> gradients;
    for (int64_t i = 0; i < parts; ++i) {
      const VocabularyPart part = {.first = i * size, .size = kWords};
      sum = Add(sum, EmbeddingPart(Part(table, 0, i, size), Ids(false), part));
      gradients.push_back(EmbeddingPartGradient(dy, Ids(false), size, part));
    }
    EXPECT_TRUE(TensorEqual(sum, Embedding(table, Ids(false))));
    EXPECT_TRUE(TensorEqual(Slice(Concat(gradients, 0), 0, 0, kWords), whole));
  }
}

TEST(VocabularyPartTest, LossesAddUp) {
  const Tensor logits = RandomTensor({kRows, kWords}, 3, 5.0f);
  const Tensor labels = Ids(true);
  const Tensor max = ReduceMax(logits, {1});
  const CrossEntropyOptions options = {.smoothing = 0.1f, .z_loss = 1e-2f};
  const CrossEntropyResult whole = CrossEntropy(logits, labels, options);
  const Tensor upstream = Tensor::Scalar(1.7f);
  const Tensor gradient = CrossEntropyGradient(
      logits.Clone(), labels, whole.log_sum_exp, options, upstream);
  for (const int64_t parts : {1, 2, 3, 4, 8}) {
    const int64_t size = SizeOf(parts);
    Tensor sums = Tensor::Zeros(ElementType::kFloat32, {kRows, 3});
    std::vector<Tensor> gradients;
    for (int64_t i = 0; i < parts; ++i) {
      const VocabularyPart part = {.first = i * size, .size = kWords};
      const Tensor here = Part(logits, 1, i, size);
      sums = Add(sums, CrossEntropySums(here, labels, max, part));
      gradients.push_back(CrossEntropyPartGradient(
          here, labels, whole.log_sum_exp, options, upstream, part));
    }
    const CrossEntropyResult joined =
        CrossEntropyOfSums(sums, max, labels, kWords, options);
    EXPECT_TRUE(TensorNear(joined.loss_sum, whole.loss_sum, 1e-6f));
    EXPECT_TRUE(TensorNear(joined.log_sum_exp, whole.log_sum_exp, 1e-6f));
    EXPECT_TRUE(
        TensorEqual(Slice(Concat(gradients, 1), 1, 0, kWords), gradient));
  }
}

}  // namespace
}  // namespace gshard
