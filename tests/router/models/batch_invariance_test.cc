// Translations do not depend on the rest of the batch: the batcher with a real
// model and random arrivals, beams, limits, cancellations and threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>

#include "router/batching/batcher.h"
#include "services/base/random.h"
#include "tests/router/local_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/translate_all.h"

namespace gshard {
namespace {

using Results = absl::StatusOr<std::vector<Hypotheses>>;

SourceSentence RandomSentence(uint64_t seed) {
  SourceSentence sentence;
  const int64_t length = RandomBelow(seed, 0, 25);
  for (int64_t i = 1; i <= length; ++i) {
    sentence.ids.push_back(RandomBelow(seed, i, 11));
  }
  sentence.ids.push_back(1);
  const int beam = 1 + RandomBelow(seed, 100, 5);
  sentence.options = {
      .beam_size = beam,
      .length_penalty = 0.3 * RandomBelow(seed, 101, 4),
      .max_length = static_cast<int>(1 + RandomBelow(seed, 102, 40)),
      .n_best = static_cast<int>(1 + RandomBelow(seed, 103, beam))};
  return sentence;
}

int64_t Between(uint64_t seed, uint64_t counter, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(RandomBelow(seed, counter, high - low + 1));
}

// Runs a random history: requests of several callers arrive while others run,
// under limits that vary by trial, and some are cancelled.
void CheckTrial(const std::shared_ptr<LocalModel>& model, uint64_t trial,
                int64_t* answered) {
  Batcher batcher({.threads = static_cast<int>(1 + RandomBelow(trial, 1, 2)),
                   .batch = {.max_rows = Between(trial, 2, 1, 40),
                             .max_positions = Between(trial, 3, 512, 2500),
                             .max_encode_tokens = Between(trial, 4, 1, 100)}});
  struct Call {
    std::vector<SourceSentence> sentences;
    uint64_t id;
    std::future<Results> results;
  };
  std::vector<Call> calls;
  const int64_t count = 8;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t seed = trial * 100 + i;
    Call& call = calls.emplace_back();
    for (int64_t s = 1 + RandomBelow(seed, 5, 3); s > 0; --s) {
      call.sentences.push_back(RandomSentence(seed * 10 + s));
    }
    auto promise = std::make_shared<std::promise<Results>>();
    call.results = promise->get_future();
    const auto id = batcher.Add(
        {.model = model,
         .sentences = call.sentences,
         .deadline = std::chrono::steady_clock::now() + std::chrono::hours(1),
         .caller = std::to_string(RandomBelow(seed, 6, 3)),
         .done = [promise](Results results) {
           promise->set_value(std::move(results));
         }});
    ASSERT_OK(id);
    call.id = *id;
    if (RandomBelow(seed, 7, 4) == 0) {
      batcher.Cancel(calls[RandomBelow(seed, 8, calls.size())].id);
    }
    // Spreads arrivals over the steps of earlier requests.
    for (int64_t n = RandomBelow(seed, 9, 50); n > 0; --n) {
      std::this_thread::yield();
    }
  }
  for (Call& call : calls) {
    const Results results = call.results.get();
    if (absl::IsCancelled(results.status())) continue;
    ASSERT_OK(results);
    ++*answered;
    for (size_t i = 0; i < call.sentences.size(); ++i) {
      const auto alone = TranslateAll(
          model->translator(), {&call.sentences[i], 1}, model->parameters());
      ASSERT_OK(alone);
      const Hypotheses& expected = alone->front();
      const Hypotheses& got = (*results)[i];
      ASSERT_EQ(got.size(), expected.size());
      for (size_t h = 0; h < got.size(); ++h) {
        EXPECT_EQ(got[h].ids, expected[h].ids);
        EXPECT_EQ(got[h].score, expected[h].score);  // bit for bit
      }
    }
  }
  EXPECT_EQ(batcher.requests(), 0);
  EXPECT_EQ(batcher.queued_sentences(), 0);
}

TEST(BatchInvarianceTest, SameTokensAndScoresInAnyCompany) {
  ModelConfig config = TinyConfig();
  config.max_positions = 64;
  const auto model = std::make_shared<LocalModel>(
      "tiny@1", config, TinyParameters(config, 7),
      TargetTokens{.bos = 3, .eos = 1, .never = {0, 2, 3}});
  int64_t answered = 0;
  for (uint64_t trial = 0; trial < 125; ++trial) {  // of 8 requests each
    SCOPED_TRACE(::testing::Message() << "trial " << trial);
    CheckTrial(model, trial, &answered);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(answered, 600);
}

}  // namespace
}  // namespace gshard
