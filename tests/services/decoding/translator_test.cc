#include "services/decoding/translator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/translate_all.h"

namespace gshard {
namespace {

constexpr int32_t kBos = 3, kEos = 1;

class TranslatorTest : public ::testing::Test {
 protected:
  TranslatorTest()
      : config_(TinyConfig()),
        parameters_(TinyParameters(config_, /*seed=*/7)),
        translator_(config_, *BuildEncodeProgram(config_),
                    *BuildDecodeProgram(config_),
                    {.bos = kBos, .eos = kEos, .never = {0, 2, kBos}}) {}

  // A sentence of 1 to 12 tokens, determined by `seed`.
  SourceSentence RandomSentence(uint64_t seed, DecodeOptions options = {}) {
    SourceSentence sentence{.ids = {}, .options = options};
    const int64_t length = 1 + RandomBelow(seed, 0, 12);
    for (int64_t i = 1; i < length; ++i) {
      sentence.ids.push_back(
          RandomBelow(seed, i, config_.source_vocabulary_size));
    }
    sentence.ids.push_back(kEos);
    return sentence;
  }

  std::vector<std::vector<DecodedHypothesis>> Translate(
      const std::vector<SourceSentence>& sentences,
      DecodeStatistics* statistics = nullptr) {
    auto results = TranslateAll(translator_, sentences, parameters_, nullptr,
                                nullptr, statistics);
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? *results
                        : std::vector<std::vector<DecodedHypothesis>>();
  }

  const ModelConfig config_;
  const TensorMap parameters_;
  const Translator translator_;
};

void ExpectSame(const std::vector<DecodedHypothesis>& a,
                const std::vector<DecodedHypothesis>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].ids, b[i].ids);
    EXPECT_EQ(a[i].score, b[i].score);  // bit for bit
  }
}

TEST_F(TranslatorTest, SentenceTranslatesTheSameAloneAndInAnyBatch) {
  for (uint64_t trial = 0; trial < 20; ++trial) {
    SCOPED_TRACE(::testing::Message() << "trial " << trial);
    std::vector<SourceSentence> batch;
    const int64_t B = 2 + RandomBelow(trial, 99, 6);
    for (int64_t b = 0; b < B; ++b) {
      // Beam sizes differ within a batch.
      const int beam = 1 + RandomBelow(trial, 200 + b, 4);
      batch.push_back(
          RandomSentence(1000 * trial + b,
                         {.beam_size = beam, .max_length = 0, .n_best = beam}));
    }
    const auto together = Translate(batch);
    ASSERT_EQ(together.size(), batch.size());
    for (size_t b = 0; b < batch.size(); ++b) {
      const auto alone = Translate({batch[b]});
      ASSERT_EQ(alone.size(), 1u);
      ExpectSame(together[b], alone[0]);
    }
  }
}

TEST_F(TranslatorTest, LongOutputsOutgrowTheFirstCache) {
  const SourceSentence sentence =
      RandomSentence(5, {.beam_size = 2, .max_length = 32, .n_best = 2});
  const auto results = Translate({sentence});
  ASSERT_EQ(results.size(), 1u);
  for (const DecodedHypothesis& hypothesis : results[0]) {
    EXPECT_LE(hypothesis.token_count, 32);
    EXPECT_THAT(hypothesis.ids, ::testing::Each(::testing::AllOf(
                                    ::testing::Ne(0), ::testing::Ne(2),
                                    ::testing::Ne(kBos), ::testing::Ne(kEos))));
  }
}

TEST_F(TranslatorTest, CancelledSentenceLeavesTheOthersAlone) {
  const std::vector<SourceSentence> batch = {
      RandomSentence(1), RandomSentence(2), RandomSentence(3)};
  const auto whole = Translate(batch);
  int asked = 0;
  auto results = TranslateAll(
      translator_, batch, parameters_, nullptr,
      [&](size_t sentence) { return sentence == 1 && ++asked > 2; });
  ASSERT_OK(results);
  ExpectSame((*results)[0], whole[0]);
  EXPECT_TRUE((*results)[1].empty());
  ExpectSame((*results)[2], whole[2]);
}

TEST_F(TranslatorTest, StatisticsCountTokensThroughExperts) {
  DecodeStatistics statistics;
  const SourceSentence sentence = RandomSentence(4, {.beam_size = 1});
  Translate({sentence}, &statistics);
  ASSERT_EQ(statistics.layers.size(), MoeLayerNames(config_).size());
  int64_t rows = 0;
  for (const int64_t r : statistics.layers[0].expert_rows) rows += r;
  EXPECT_EQ(statistics.layers[0].layer, "encoder.0.moe");
  EXPECT_EQ(rows, 2 * static_cast<int64_t>(sentence.ids.size()));
  EXPECT_EQ(statistics.layers[0].overflow_first, 0);
  EXPECT_EQ(statistics.decoded_tokens, statistics.steps);
}

TEST_F(TranslatorTest, BadSentencesAreRefused) {
  const auto translate = [&](SourceSentence sentence) {
    return TranslateAll(translator_, {&sentence, 1}, parameters_);
  };
  EXPECT_THAT(translate({.ids = {}, .options = {}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("1 to 32 tokens, got 0")));
  EXPECT_THAT(translate({.ids = std::vector<int32_t>(33, 4), .options = {}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("got 33")));
  EXPECT_THAT(translate({.ids = {4, 11, 1}, .options = {}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("[0, 11), got 11")));
}

TEST_F(TranslatorTest, EmptyBatchGivesNothing) {
  EXPECT_TRUE(Translate({}).empty());
}

class TranslatorPanelsTest : public ::testing::TestWithParam<ComputeType> {};

TEST_P(TranslatorPanelsTest, WeightsInPanelsTranslateTheSame) {
  ModelConfig config = TinyConfig();
  config.model_width = 48;
  config.ffn_width = 64;
  config.expert_width = 32;
  config.head_width = 16;
  config.compute_type = GetParam();
  // bfloat16 logits have other bits if the table is not in panels, so only
  // float32 gets a vocabulary that fits panels.
  if (GetParam() == ComputeType::kFloat32) config.target_vocabulary_size = 32;
  const Translator translator(
      config, *BuildEncodeProgram(config), *BuildDecodeProgram(config),
      {.bos = kBos, .eos = kEos, .never = {0, 2, kBos}});
  TensorMap rows = TinyParameters(config, /*seed=*/7);
  CastToBf16(translator.weight_forms(), rows);
  const TensorMap panels = AsServed(translator.weight_forms(), rows);
  std::vector<std::string> row_major;
  for (const auto& [name, form] : translator.weight_forms()) {
    if (rows.at(name).rank() > 1 && !form.in_panels()) {
      row_major.push_back(name);
    }
  }
  // Lookups read its rows.
  EXPECT_THAT(row_major, ::testing::ElementsAre("source_embedding"));
  std::vector<SourceSentence> sentences;
  for (int i = 1; i < 6; ++i) {
    sentences.push_back(
        {.ids = {4, 5 + i, 10 - i, kEos}, .options = {.beam_size = 1 + i % 3}});
  }
  const auto translate = [&](const TensorMap& parameters) {
    return TranslateAll(translator, sentences, parameters);
  };
  ASSERT_OK_AND_ASSIGN(const auto expected, translate(rows));
  ASSERT_OK_AND_ASSIGN(const auto results, translate(panels));
  for (size_t i = 0; i < sentences.size(); ++i) {
    ExpectSame(results[i], expected[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TranslatorPanelsTest,
                         ::testing::Values(ComputeType::kFloat32,
                                           ComputeType::kBFloat16));

}  // namespace
}  // namespace gshard
