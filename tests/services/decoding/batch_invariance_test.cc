// Translations do not depend on the rest of the batch: a thousand random
// batches of sentences with all kinds of decoding options.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "services/base/random.h"
#include "services/decoding/running_batch.h"
#include "services/model/transformer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/translate_all.h"

namespace gshard {
namespace {

constexpr int32_t kBos = 3, kEos = 1, kUnknown = 12;
constexpr int kCompositions = 1000, kSentences = 50;

int Below(uint64_t seed, uint64_t counter, int64_t n) {
  return static_cast<int>(RandomBelow(seed, counter, n));
}

// A token that prefixes and phrases may contain.
int32_t TargetToken(uint64_t seed, uint64_t counter) {
  return 4 + Below(seed, counter, kUnknown - 4);
}

// A third of sentences are greedy, the others use a beam; some have a prefix,
// phrases or alternatives, are drawn, or allow the unknown token.
SourceSentence RandomSentence(uint64_t seed) {
  SourceSentence sentence;
  for (int i = Below(seed, 0, 12); i > 0; --i) {
    sentence.ids.push_back(Below(seed, i, 11));
  }
  sentence.ids.push_back(kEos);
  DecodeOptions& options = sentence.options;
  options.max_length = 7 + Below(seed, 100, 10);
  options.allow_unknown = Below(seed, 101, 3) == 0;
  if (Below(seed, 102, 3) == 0) {
    options.beam_size = 1;
    options.length_penalty = 0.0;
  } else {
    options.beam_size = 2 + Below(seed, 103, 4);
    options.length_penalty = 0.3 * Below(seed, 104, 4);
    options.n_best = options.beam_size;
  }
  if (Below(seed, 105, 4) == 0) {
    for (int i = 1 + Below(seed, 106, 3); i > 0; --i) {
      options.prefix.push_back(TargetToken(seed, 200 + i));
    }
  }
  switch (Below(seed, 107, 5)) {
    case 0:
      options.phrases = {{TargetToken(seed, 300), TargetToken(seed, 301)},
                         {TargetToken(seed, 302)}};
      break;
    case 1:
      options.alternatives = true;
      break;
    case 2:
      options.sampling = {.top_k = 1 + static_cast<int>(Below(seed, 310, 6)),
                          .temperature = 0.5 + Below(seed, 311, 3),
                          .seed = seed};
      break;
    default:
      break;
  }
  return sentence;
}

class BatchInvarianceTest : public ::testing::TestWithParam<ComputeType> {
 protected:
  BatchInvarianceTest()
      : translator_(config_, *BuildEncodeProgram(config_),
                    *BuildDecodeProgram(config_),
                    {.bos = kBos,
                     .eos = kEos,
                     .never = {0, 2, kBos},
                     .unk = kUnknown}) {
    parameters_ = AsServed(translator_.weight_forms(), parameters_);
    for (int i = 0; i < kSentences; ++i) {
      sentences_.push_back(RandomSentence(i));
      auto alone =
          TranslateAll(translator_, {&sentences_.back(), 1}, parameters_);
      EXPECT_OK(alone);
      alone_.push_back(alone->front());
    }
  }

  static ModelConfig Config() {
    ModelConfig config = TinyConfig();
    // One MoE layer each; running_batch_test covers dense layers, too.
    config.encoder_layers = config.decoder_layers = 1;
    config.compute_type = GetParam();
    if (GetParam() != ComputeType::kInt8) config.wire_type = GetParam();
    return config;
  }

  // Two to seven of the sentences, some repeated, each of which joins at a
  // random step; a few leave before they are done.
  void CheckComposition(uint64_t seed, int64_t* finished_count,
                        int64_t* most_rows) {
    struct Part {
      int sentence;
      int joins;
      int leaves;  // no effect if done before
    };
    std::vector<Part> parts;
    for (int i = 2 + Below(seed, 0, 6); i > 0; --i) {
      parts.push_back({.sentence = Below(seed, 10 * i, kSentences),
                       .joins = Below(seed, 10 * i + 1, 8),
                       .leaves = Below(seed, 10 * i + 2, 80)});
    }
    RunningBatch batch(translator_, parameters_, 1 << 20);
    size_t joined = 0;
    for (int step = 0; joined < parts.size() || batch.sentences() > 0; ++step) {
      std::vector<JoiningSentence> joining;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].joins == step) {
          joining.push_back(
              {.id = i, .sentence = &sentences_[parts[i].sentence]});
        }
        if (parts[i].leaves == step) batch.Leave(i);
      }
      joined += joining.size();
      ASSERT_OK(batch.Join(joining, nullptr, nullptr));
      *most_rows = std::max(*most_rows, batch.rows());
      ASSERT_OK(batch.Step(nullptr, nullptr));
      for (const FinishedSentence& finished : batch.TakeFinished()) {
        ++*finished_count;
        SCOPED_TRACE(::testing::Message() << "sentence " << finished.id);
        const int sentence = parts[finished.id].sentence;
        ASSERT_OK(finished.hypotheses);
        ExpectSame(*finished.hypotheses, alone_[sentence]);
      }
    }
  }

  static void ExpectSame(const std::vector<DecodedHypothesis>& got,
                         const std::vector<DecodedHypothesis>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t h = 0; h < got.size(); ++h) {
      ASSERT_EQ(got[h].ids, expected[h].ids);
      ASSERT_EQ(got[h].score, expected[h].score);  // bit for bit
      ASSERT_EQ(got[h].token_count, expected[h].token_count);
      ASSERT_EQ(got[h].truncated, expected[h].truncated);
      ASSERT_EQ(got[h].phrases_met, expected[h].phrases_met);
    }
  }

  const ModelConfig config_ = Config();
  TensorMap parameters_ = TinyParameters(config_, /*seed=*/7);
  const Translator translator_;
  std::vector<SourceSentence> sentences_;
  std::vector<std::vector<DecodedHypothesis>> alone_;
};

TEST_P(BatchInvarianceTest, SameTokensAndScoresInAnyCompany) {
  int64_t finished = 0, most_rows = 0;
  for (uint64_t seed = 0; seed < kCompositions; ++seed) {
    SCOPED_TRACE(::testing::Message() << "composition " << seed);
    CheckComposition(FoldIn(1234, seed), &finished, &most_rows);
    if (HasFailure()) return;
  }
  EXPECT_GT(finished, 3 * kCompositions);
  EXPECT_GT(most_rows, 15);
}

INSTANTIATE_TEST_SUITE_P(Types, BatchInvarianceTest,
                         ::testing::Values(ComputeType::kFloat32,
                                           ComputeType::kBFloat16,
                                           ComputeType::kInt8));

}  // namespace
}  // namespace gshard
