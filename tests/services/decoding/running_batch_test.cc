// Sentences that join and leave at any time translate as each does alone, on
// the CPU and on a fake device with the CPU's kernels.

#include "services/decoding/running_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "services/base/random.h"
#include "services/model/transformer.h"
#include "tests/services/decoding/slow_translation.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/translate_all.h"

namespace gshard {
namespace {

constexpr int32_t kBos = 3, kEos = 1;

class RunningBatchTest : public ::testing::TestWithParam<bool> {
 protected:
  RunningBatchTest()
      : config_(Config()),
        on_host_(TinyParameters(config_, /*seed=*/7)),
        slow_(MakeTranslator(nullptr)),
        parameters_(on_host_),
        translator_(MakeTranslator(GetParam() ? &device_ : nullptr)) {
    if (!GetParam()) return;
    for (auto& [name, tensor] : parameters_) {
      tensor = *CopyToDevice(device_, tensor);
    }
  }

  Translator MakeTranslator(Device* device) const {
    const Program encode = *BuildEncodeProgram(config_);
    const Program decode = *BuildDecodeProgram(config_);
    RegisterAllFakeDeviceKernels();
    return Translator(config_, encode, decode,
                      {.bos = kBos, .eos = kEos, .never = {0, 2, kBos}},
                      device);
  }

  // Room for translations of several pages.
  static ModelConfig Config() {
    ModelConfig config = TinyConfig();
    config.max_positions = 80;
    return config;
  }

  // Determined by `seed`: 1 to 40 tokens, beam 1 to 4, some with a limit.
  SourceSentence RandomSentence(uint64_t seed) const {
    SourceSentence sentence;
    const int64_t length = 1 + RandomBelow(seed, 0, 40);
    for (int64_t i = 1; i < length; ++i) {
      sentence.ids.push_back(
          RandomBelow(seed, i, config_.source_vocabulary_size));
    }
    sentence.ids.push_back(kEos);
    const int beam = 1 + RandomBelow(seed, 100, 4);
    const int limit = RandomBelow(seed, 101, 2) == 0
                          ? 0
                          : 1 + static_cast<int>(RandomBelow(seed, 102, 70));
    sentence.options = {.beam_size = beam,
                        .length_penalty = 0.2 * RandomBelow(seed, 103, 5),
                        .max_length = limit,
                        .n_best = beam};
    return sentence;
  }

  std::vector<DecodedHypothesis> Alone(const SourceSentence& sentence) const {
    auto results = TranslateAll(translator_, {&sentence, 1}, parameters_);
    EXPECT_OK(results);
    return results.ok() ? results->front() : std::vector<DecodedHypothesis>();
  }

  const ModelConfig config_;
  const TensorMap on_host_;
  const Translator slow_;  // on the CPU
  FakeDevice device_;
  TensorMap parameters_;
  const Translator translator_;
};

INSTANTIATE_TEST_SUITE_P(OnADevice, RunningBatchTest, ::testing::Bool());

void ExpectSame(const absl::StatusOr<std::vector<DecodedHypothesis>>& got,
                const std::vector<DecodedHypothesis>& b) {
  ASSERT_OK(got);
  const std::vector<DecodedHypothesis>& a = *got;
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].ids, b[i].ids);
    EXPECT_EQ(a[i].score, b[i].score);  // bit for bit
    EXPECT_EQ(a[i].token_count, b[i].token_count);
    EXPECT_EQ(a[i].truncated, b[i].truncated);
  }
}

// A sentence gives the same result in a batch that others join and leave at
// random steps as alone. The cache is full most of the time.
TEST_P(RunningBatchTest, EverySentenceIsTranslatedAsIfAlone) {
  constexpr int kTrials = 25, kSentences = 12;
  int64_t finished_count = 0, left = 0;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    SCOPED_TRACE(::testing::Message() << "trial " << trial);
    RunningBatch batch(translator_, parameters_, 60 * kPagePositions);
    std::vector<SourceSentence> sentences;
    std::map<uint64_t, int64_t> leaves_at;
    for (int i = 0; i < kSentences; ++i) {
      sentences.push_back(RandomSentence(trial * 1000 + i));
      if (RandomBelow(trial, 500 + i, 4) == 0) {
        leaves_at[i] = RandomBelow(trial, 600 + i, 60);
      }
    }
    size_t next = 0;
    for (int64_t step = 0; next < sentences.size() || batch.sentences() > 0;
         ++step) {
      // As many as fit, up to a random number.
      std::vector<JoiningSentence> joining;
      int64_t positions = batch.reserved_positions();
      const int64_t most = RandomBelow(trial, 10000 + step, 4);
      while (next < sentences.size() &&
             static_cast<int64_t>(joining.size()) < most) {
        positions += translator_.CachedPositions(sentences[next]);
        if (positions > 60 * kPagePositions) break;
        joining.push_back({.id = next, .sentence = &sentences[next]});
        ++next;
      }
      ASSERT_OK(batch.Join(joining, nullptr, nullptr));
      for (const auto& [id, when] : leaves_at) {
        if (when != step) continue;
        const int64_t before = batch.sentences();
        batch.Leave(id);
        left += before - batch.sentences();
      }
      ASSERT_OK(batch.Step(nullptr, nullptr));
      EXPECT_LE(batch.used_positions(), batch.reserved_positions());
      for (const FinishedSentence& finished : batch.TakeFinished()) {
        ++finished_count;
        ExpectSame(finished.hypotheses, Alone(sentences[finished.id]));
      }
    }
    EXPECT_EQ(batch.used_positions(), 0);
    EXPECT_EQ(batch.reserved_positions(), 0);
  }
  EXPECT_GT(left, 10);
  EXPECT_GT(finished_count, 200);
}

TEST_P(RunningBatchTest, ASentenceAloneIsTranslatedAsBySlowTwin) {
  const uint64_t seeds = GetParam() ? 4 : 12;  // the twin is slow
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const SourceSentence sentence = RandomSentence(seed);
    ExpectSame(Alone(sentence),
               reference::SlowTranslation(slow_, on_host_, sentence).Run());
  }
}

TEST_P(RunningBatchTest, AStepCostsTheLiveHypothesesOnly) {
  RunningBatch batch(translator_, parameters_, 1000);
  const SourceSentence greedy{.ids = {4, 5, kEos},
                              .options = {.beam_size = 1, .max_length = 3}};
  const SourceSentence beams{.ids = {6, kEos},
                             .options = {.beam_size = 4, .max_length = 9}};
  DecodeStatistics statistics;
  ASSERT_OK(batch.Join(
      {{.id = 1, .sentence = &greedy}, {.id = 2, .sentence = &beams}}, nullptr,
      &statistics));
  EXPECT_EQ(statistics.layers[0].expert_rows.size(), 4u);
  EXPECT_EQ(batch.rows(), 2);
  ASSERT_OK(batch.Step(nullptr, &statistics));
  EXPECT_EQ(statistics.decoded_tokens, 2);
  EXPECT_EQ(batch.rows(), 5);
  batch.Leave(2);
  EXPECT_EQ(batch.rows(), 1);
  EXPECT_EQ(batch.reserved_positions(), translator_.CachedPositions(greedy));
}

TEST_P(RunningBatchTest, WhatCannotJoinLeavesTheOthersAlone) {
  RunningBatch batch(translator_, parameters_, 8 * kPagePositions);
  SourceSentence sentence{.ids = {4, 5, kEos},
                          .options = {.beam_size = 4, .max_length = 16}};
  ASSERT_OK(batch.Join({{.id = 1, .sentence = &sentence}}, nullptr, nullptr));
  ASSERT_OK(batch.Step(nullptr, nullptr));
  EXPECT_THAT(batch.Join({{.id = 2, .sentence = &sentence}}, nullptr, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::HasSubstr("at most 48 cached positions, "
                                            "got 80")));
  EXPECT_THAT(batch.Join({{.id = 1, .sentence = &sentence}}, nullptr, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("1 is in the batch")));
  const SourceSentence bad{.ids = {99}, .options = {}};
  EXPECT_THAT(batch.Join({{.id = 2, .sentence = &bad}}, nullptr, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("got 99")));
  std::vector<FinishedSentence> finished;
  while (finished.empty()) {
    ASSERT_OK(batch.Step(nullptr, nullptr));
    finished = batch.TakeFinished();
  }
  ExpectSame(finished[0].hypotheses, Alone(sentence));
  EXPECT_EQ(batch.sentences(), 0);
  EXPECT_OK(batch.Step(nullptr, nullptr));
}

// Neither is the one that runs with it affected, nor the one that gets its
// pages of the cache.
TEST_P(RunningBatchTest, ASentenceWhoseLogitsAreNotNumbersFailsAlone) {
  TensorMap parameters = on_host_;
  Tensor& table = parameters.at("source_embedding");
  table = table.Clone();
  constexpr int32_t kNotANumber = 6;
  table.f32()[kNotANumber * table.dim(1)] = std::nanf("");
  if (GetParam()) {
    for (auto& [name, tensor] : parameters) {
      tensor = *CopyToDevice(device_, tensor);
    }
  }
  const DecodeOptions options = {.beam_size = 3, .max_length = 20};
  const SourceSentence bad{.ids = {4, kNotANumber, kEos}, .options = options};
  const SourceSentence good{.ids = {4, 5, kEos}, .options = options};
  RunningBatch batch(translator_, parameters,
                     2 * translator_.CachedPositions(good));
  ASSERT_OK(
      batch.Join({{.id = 1, .sentence = &bad}, {.id = 2, .sentence = &good}},
                 nullptr, nullptr));
  ASSERT_OK(batch.Step(nullptr, nullptr));
  std::vector<FinishedSentence> finished = batch.TakeFinished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].id, 1u);
  EXPECT_THAT(finished[0].hypotheses,
              StatusIs(absl::StatusCode::kInternal,
                       ::testing::HasSubstr("not numbers")));
  EXPECT_EQ(batch.reserved_positions(), translator_.CachedPositions(good));
  ASSERT_OK(batch.Join({{.id = 3, .sentence = &good}}, nullptr, nullptr));
  int64_t translated = 0;
  while (batch.sentences() > 0) {
    ASSERT_OK(batch.Step(nullptr, nullptr));
    for (const FinishedSentence& one : batch.TakeFinished()) {
      ++translated;
      ExpectSame(one.hypotheses, Alone(good));
    }
  }
  EXPECT_EQ(translated, 2);
  EXPECT_EQ(batch.used_positions(), 0);
}

using DeviceBatchTest = RunningBatchTest;
INSTANTIATE_TEST_SUITE_P(OnADevice, DeviceBatchTest, ::testing::Values(true));

// If the cache cannot grow, a join fails and running sentences are unaffected.
TEST_P(DeviceBatchTest, ACacheThatCannotGrowIsAsBefore) {
  RunningBatch batch(translator_, parameters_, 1000);
  const SourceSentence sentence{.ids = {4, 5, kEos},
                                .options = {.beam_size = 4, .max_length = 20}};
  ASSERT_OK(batch.Join({{.id = 1, .sentence = &sentence}}, nullptr, nullptr));
  ASSERT_OK(batch.Step(nullptr, nullptr));
  const int64_t used = batch.used_positions();
  device_.copy_error = absl::ResourceExhaustedError("no memory");
  EXPECT_THAT(batch.Join({{.id = 2, .sentence = &sentence}}, nullptr, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::HasSubstr("no memory")));
  EXPECT_EQ(batch.used_positions(), used);
  device_.copy_error = absl::OkStatus();
  std::vector<FinishedSentence> finished;
  while (finished.empty()) {
    ASSERT_OK(batch.Step(nullptr, nullptr));
    finished = batch.TakeFinished();
  }
  ExpectSame(finished[0].hypotheses, Alone(sentence));
}

// The logits' run is that of the candidates, so it is waited for once.
TEST_P(DeviceBatchTest, AStepIsOneRun) {
  RunningBatch batch(translator_, parameters_, 1000);
  const SourceSentence sentence{.ids = {4, 5, kEos},
                                .options = {.max_length = 20}};
  ASSERT_OK(batch.Join({{.id = 1, .sentence = &sentence}}, nullptr, nullptr));
  const int64_t before = device_.runs();
  ASSERT_OK(batch.Step(nullptr, nullptr));
  EXPECT_EQ(device_.runs(), before + 1);
}

TEST_P(DeviceBatchTest, AStepThatTheDeviceCannotMakeFails) {
  RunningBatch batch(translator_, parameters_, 1000);
  const SourceSentence sentence{.ids = {4, kEos}, .options = {}};
  ASSERT_OK(batch.Join({{.id = 1, .sentence = &sentence}}, nullptr, nullptr));
  device_.finish_error = absl::UnavailableError("lost");
  EXPECT_THAT(
      batch.Step(nullptr, nullptr),
      StatusIs(absl::StatusCode::kUnavailable, ::testing::HasSubstr("lost")));
}

}  // namespace
}  // namespace gshard
