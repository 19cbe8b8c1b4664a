// Tests beam search, whole translations and microbatches on a GPU, against the
// CPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "services/base/random.h"
#include "services/cuda/kernels/top_tokens.h"
#include "services/decoding/running_batch.h"
#include "services/model/transformer.h"
#include "services/ops/top_tokens.h"
#include "services/train/microbatch.h"
#include "tests/services/cuda/gpu_test.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/translate_all.h"

namespace gshard {
namespace {

class DecodingStepsTest : public GpuTest {
 protected:
  std::vector<std::vector<TokenScore>> OnTheGpu(
      const Tensor& logits, const std::vector<TokensWanted>& wanted) {
    auto there = CopyToDevice(*device_, logits);
    EXPECT_OK(there.status());
    auto run = device_->BeginRun();
    EXPECT_OK(run.status());
    auto rows = (*run)->TopTokensOfRows(*there, wanted);
    EXPECT_OK(rows.status());
    return *rows;
  }
};

void ExpectNear(const std::vector<TokenScore>& got,
                const std::vector<TokenScore>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, expected[i].token) << i;
    EXPECT_NEAR(got[i].log_probability, expected[i].log_probability, 1e-5) << i;
  }
}

// The GPU finds the CPU's top tokens for one chunk and several, full and
// partial, with many equal logits.
TEST_F(DecodingStepsTest, TopTokensAreThoseOfTheCpu) {
  const std::vector<int32_t> never = {0, 3, 4}, more = {0, 3, 4, 7, 1};
  for (const int64_t V : {1, 5, 31, 1024, 1025, 2500}) {
    SCOPED_TRACE(V);
    constexpr int64_t kRows = 6;
    Tensor logits(ElementType::kFloat32, {kRows, V});
    for (int64_t i = 0; i < logits.size(); ++i) {
      logits.f32()[i] = static_cast<float>(RandomBelow(V, i, 40)) / 4.0f;
    }
    // An impossible token, and one with nearly all of the probability.
    logits.f32()[V] = -std::numeric_limits<float>::infinity();
    logits.f32()[3 * V - 1] = 80.0f;
    const std::vector<int32_t> also = {static_cast<int32_t>(V - 1), 0};
    const std::vector<TokensWanted> wanted = {
        {.count = 2, .never = never},
        {.count = 8, .never = more},
        {.count = 8, .never = never, .also = also},
        {.count = 1, .also = also},
        {.count = 3, .never = never},
        {.count = 40}};
    const auto got = OnTheGpu(logits, wanted);
    const auto expected = TopTokensOfRows(logits, wanted);
    ASSERT_EQ(got.size(), expected.size());
    for (int64_t r = 0; r < kRows; ++r) {
      SCOPED_TRACE(r);
      ExpectNear(got[r], expected[r]);
    }
  }
}

TEST_F(DecodingStepsTest, ARowThatIsNoNumbersHasNoTokens) {
  constexpr int64_t V = 1100;
  Tensor logits = RandomTensor({4, V}, 1);
  logits.f32()[V + 1050] = std::nanf("");
  for (int64_t v = 0; v < V; ++v) {
    logits.f32()[2 * V + v] = -std::numeric_limits<float>::infinity();
  }
  const auto got = OnTheGpu(logits, std::vector<TokensWanted>(4, {.count = 4}));
  EXPECT_EQ(got[0].size(), 4u);
  EXPECT_TRUE(got[1].empty());
  EXPECT_TRUE(got[2].empty());
  EXPECT_EQ(got[3].size(), 4u);
}

// The last of many rows has the same bits as the row alone.
TEST_F(DecodingStepsTest, ARowIsAsAlone) {
  constexpr int64_t V = 1500;
  const Tensor logits = RandomTensor({9, V}, 1);
  const auto among =
      OnTheGpu(logits, std::vector<TokensWanted>(9, {.count = 6}));
  const auto alone = OnTheGpu(logits.Rows(8, 9), {{.count = 6}});
  ASSERT_EQ(among[8].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(among[8][i].token, alone[0][i].token);
    EXPECT_EQ(among[8][i].log_probability, alone[0][i].log_probability);
  }
}

TEST_F(DecodingStepsTest, CopiesRanges) {
  const Tensor x = RandomTensor({40}, 1);
  ASSERT_OK_AND_ASSIGN(const Tensor from, CopyToDevice(*device_, x));
  ASSERT_OK_AND_ASSIGN(
      Tensor to,
      CopyToDevice(*device_, Tensor::Zeros(ElementType::kFloat32, {30})));
  ASSERT_OK_AND_ASSIGN(const auto run, device_->BeginRun());
  ASSERT_OK(run->CopyRanges(from, {}, to));
  ASSERT_OK(run->CopyRanges(
      from,
      {{.from = 3, .to = 0, .count = 7}, {.from = 39, .to = 29, .count = 1}},
      to));
  // Within one tensor.
  ASSERT_OK(run->CopyRanges(to, {{.from = 1, .to = 10, .count = 5}}, to));
  ASSERT_OK_AND_ASSIGN(const Tensor got, run->ToHost(to));
  ASSERT_OK(run->Finish());
  Tensor expected = Tensor::Zeros(ElementType::kFloat32, {30});
  for (int i = 0; i < 7; ++i) expected.f32()[i] = x.f32()[3 + i];
  for (int i = 0; i < 5; ++i) expected.f32()[10 + i] = x.f32()[4 + i];
  expected.f32()[29] = x.f32()[39];
  EXPECT_TRUE(TensorEqual(got, expected));
}

constexpr int32_t kBos = 3, kEos = 1;

class GpuTranslationTest : public GpuTest,
                           public ::testing::WithParamInterface<ComputeType> {
 protected:
  GpuTranslationTest() { config_.compute_type = GetParam(); }

  Translator Make(Device* device) const {
    return Translator(
        config_, *BuildEncodeProgram(config_), *BuildDecodeProgram(config_),
        {.bos = kBos, .eos = kEos, .never = {0, 2, kBos}}, device);
  }
  std::vector<std::vector<DecodedHypothesis>> Translate(
      const Translator& translator,
      const std::vector<SourceSentence>& sentences,
      const TensorMap& parameters) {
    auto results = TranslateAll(translator, sentences, parameters);
    EXPECT_OK(results.status());
    return *results;
  }

  ModelConfig config_ = TinyConfig();
};

INSTANTIATE_TEST_SUITE_P(Types, GpuTranslationTest,
                         ::testing::Values(ComputeType::kFloat32,
                                           ComputeType::kInt8));

// Translations match the CPU's, with beams that share pages and diverge past
// the end of a page. A sentence has the same bits alone as in a batch.
TEST_P(GpuTranslationTest, IsTheCpus) {
  std::vector<SourceSentence> sentences;
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{4, 5, 6, kEos},
                                          {7, kEos},
                                          {9, 9, 4, 4, 8, kEos}}) {
    sentences.push_back(
        {.ids = ids,
         .options = {.beam_size = 3, .max_length = 18, .n_best = 2}});
  }
  const Translator cpu = Make(nullptr), gpu = Make(device_.get());
  ASSERT_OK(gpu.status());
  const TensorMap on_host = TinyParameters(config_, 7);
  TensorMap parameters = AsServed(gpu.weight_forms(), on_host);
  for (auto& [name, tensor] : parameters) {
    ASSERT_OK_AND_ASSIGN(tensor, CopyToDevice(*device_, tensor));
  }
  const auto expected = Translate(cpu, sentences, on_host);
  const auto got = Translate(gpu, sentences, parameters);
  const auto alone = Translate(gpu, {sentences[2]}, parameters);
  for (size_t s = 0; s < sentences.size(); ++s) {
    ASSERT_EQ(got[s].size(), expected[s].size());
    for (size_t i = 0; i < got[s].size(); ++i) {
      EXPECT_EQ(got[s][i].ids, expected[s][i].ids);
      EXPECT_NEAR(got[s][i].score, expected[s][i].score, 1e-4);
    }
  }
  ASSERT_EQ(alone[0].size(), got[2].size());
  for (size_t i = 0; i < alone[0].size(); ++i) {
    EXPECT_EQ(alone[0][i].ids, got[2][i].ids);
    EXPECT_EQ(alone[0][i].score, got[2][i].score);
  }
}

using GpuMicrobatchTest = GpuTest;

Batch SmallBatch() {
  return {.source = Tensor::Ints({2, 3}, {4, 5, 1, 7, 1, 0}),
          .source_lengths = Tensor::Ints({2}, {3, 2}),
          .target_input = Tensor::Ints({2, 2}, {3, 6, 3, 9}),
          .target_labels = Tensor::Ints({2, 2}, {6, 1, 9, 1}),
          .target_lengths = Tensor::Ints({2}, {2, 2}),
          .source_tokens = 5,
          .target_tokens = 4};
}

TEST_F(GpuMicrobatchTest, HasTheCpusGradients) {
  for (const ComputeType type :
       {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    ModelConfig config = TinyConfig();
    config.compute_type = type;
    const Program program = *BuildTrainProgram(config, {});
    const MicrobatchRunner cpu(config, program);
    const MicrobatchRunner gpu(config, program, device_.get());
    ASSERT_OK(gpu.status());
    TensorMap on_host = TinyParameters(config, 7), parameters = on_host;
    ASSERT_OK(cpu.Load(on_host));
    ASSERT_OK(gpu.Load(parameters));
    for (const auto& [name, tensor] : parameters) {
      EXPECT_FALSE(tensor.on_host()) << name;
    }
    ASSERT_OK_AND_ASSIGN(const MicrobatchResult expected,
                         cpu.Run(SmallBatch(), 1, 1, 0, on_host));
    ASSERT_OK_AND_ASSIGN(const MicrobatchResult got,
                         gpu.Run(SmallBatch(), 1, 1, 0, parameters));
    const float tolerance = type == ComputeType::kBFloat16 ? 2e-2f : 1e-5f;
    EXPECT_NEAR(got.statistics.loss_sum, expected.statistics.loss_sum,
                10 * tolerance);
    EXPECT_EQ(got.statistics.layers[0].expert_rows,
              expected.statistics.layers[0].expert_rows);
    ASSERT_EQ(got.gradients.size(), expected.gradients.size());
    for (size_t i = 0; i < got.gradients.size(); ++i) {
      EXPECT_EQ(got.gradients[i].first, expected.gradients[i].first);
      EXPECT_TRUE(TensorNear(got.gradients[i].second,
                             expected.gradients[i].second, tolerance))
          << got.gradients[i].first;
    }

    // As a router has it that sums gradients with others: the parameters come
    // from its device, and the gradients stay there.
    const MicrobatchRunner keeping(config, program, device_.get(),
                                   /*keep_gradients=*/true);
    TensorMap there = TinyParameters(config, 7);
    for (auto& [name, tensor] : there) {
      ASSERT_OK_AND_ASSIGN(tensor, CopyToDevice(*device_, tensor));
    }
    ASSERT_OK(keeping.Load(there));
    ASSERT_OK_AND_ASSIGN(const MicrobatchResult kept,
                         keeping.Run(SmallBatch(), 1, 1, 0, there));
    for (size_t i = 0; i < got.gradients.size(); ++i) {
      EXPECT_FALSE(kept.gradients[i].second.on_host());
      ASSERT_OK_AND_ASSIGN(const Tensor gradient,
                           CopyToHost(*device_, kept.gradients[i].second));
      EXPECT_TRUE(TensorEqual(gradient, got.gradients[i].second))
          << got.gradients[i].first;
    }
  }
}

}  // namespace
}  // namespace gshard
