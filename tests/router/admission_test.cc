// Who is taken, in virtual time.

#include "router/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/base/random.h"
#include "services/base/retry_delay.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

SentenceCost Cost(int64_t source_tokens, int64_t rows = 1) {
  return {.source_tokens = source_tokens,
          .rows = rows,
          .positions = source_tokens + rows * 2 * source_tokens};
}

WaitingSentence Sentence(std::string caller, uint64_t flow,
                         const SentenceCost& cost) {
  return {.caller = std::move(caller),
          .flow = flow,
          .request = flow,
          .sentence = 0,
          .cost = cost,
          .arrival = {}};
}

TEST(ServiceTimesTest, FitsRoundsOfAnySize) {
  ServiceTimes times;
  EXPECT_EQ(times.RoundSeconds(8), 0);
  for (uint64_t i = 0; i < 200; ++i) {
    const int64_t rows = 1 + RandomBelow(1, i, 40);
    const double noise = 0.9 + 0.2 * RandomUniform(2, i);
    times.ObserveRound(rows, (0.004 + 0.001 * rows) * noise);
  }
  EXPECT_NEAR(times.RoundSeconds(1), 0.005, 0.001);
  EXPECT_NEAR(times.RoundSeconds(40), 0.044, 0.003);
  EXPECT_NEAR(times.RoundSeconds(128), 0.132, 0.012);
}

TEST(ServiceTimesTest, OneSizeSaysNothingOfOthers) {
  ServiceTimes times;
  for (int i = 0; i < 50; ++i) times.ObserveRound(4, 0.02);
  EXPECT_DOUBLE_EQ(times.RoundSeconds(4), 0.02);
  EXPECT_DOUBLE_EQ(times.RoundSeconds(100), 0.02);
}

TEST(ServiceTimesTest, ForgetsAStall) {
  ServiceTimes times;
  times.ObserveRound(4, 30.0);
  for (int i = 0; i < 1000; ++i) times.ObserveRound(4 + i % 3, 0.02);
  EXPECT_NEAR(times.RoundSeconds(4), 0.02, 0.005);
}

TEST(ServiceTimesTest, TimeIsSharedByRowsAndBatchesButNotBelowOneSentence) {
  ServiceTimes times;
  times.ObserveRound(10, 0.01);
  times.ObserveSentence(10, 20);
  // 1000 tokens are 2000 row rounds, 100 at a time.
  EXPECT_DOUBLE_EQ(times.Seconds(1000, 100, 10, 1000, 1), 20 * 0.01);
  EXPECT_DOUBLE_EQ(times.Seconds(1000, 100, 10, 50, 1), 40 * 0.01);
  EXPECT_DOUBLE_EQ(times.Seconds(1000, 100, 10, 50, 2), 20 * 0.01);
  EXPECT_DOUBLE_EQ(times.Seconds(1000, 100, 30, 1000, 1), 60 * 0.01);
}

TEST(OutstandingWorkTest, ARequestWaitsForAsMuchOfOthersAsItBrings) {
  OutstandingWork work;
  EXPECT_EQ(work.Until("a", 1, 10), 10);
  work.Promise("bulk", 1, 1000);
  EXPECT_EQ(work.Until("a", 2, 10), 20);
  EXPECT_EQ(work.Until("bulk", 1, 10), 1010);  // behind its own flow
  EXPECT_EQ(work.Until("bulk", 3, 10), 20);    // beside it
  work.Promise("a", 2, 30);
  EXPECT_EQ(work.Until("a", 2, 10), 80);
  work.Begin("a", 2, 30);
  EXPECT_EQ(work.TokensOf("a"), 30);
  EXPECT_EQ(work.Until("a", 2, 10), 50);  // half of what runs is done
  work.Finish("a", 2, 30);
  EXPECT_EQ(work.TokensOf("a"), 0);
  work.Drop("bulk", 1, 1000);
  EXPECT_TRUE(work.empty());
  EXPECT_EQ(work.tokens(), 0);
}

class AdmissionTest : public ::testing::Test {
 protected:
  static AdmissionRequest Request(std::string caller, int64_t tokens,
                                  milliseconds time_left = milliseconds(9999),
                                  uint64_t flow = 7) {
    return {.caller = std::move(caller),
            .flow = flow,
            .costs = {Cost(tokens)},
            .time_left = time_left};
  }
};

TEST_F(AdmissionTest, WhatCanNeverBeTakenHasNoRetryDelay) {
  const Admission admission(
      {.max_queued_tokens = 100, .max_queued_sentences = 2},
      {.max_positions = 90}, 1);
  for (const auto& [costs, message] :
       std::vector<std::pair<std::vector<SentenceCost>, std::string>>{
           {{Cost(26, 4)}, "104 tokens"},
           {{Cost(1), Cost(1), Cost(1)}, "3 sentences"},
           {{Cost(1), Cost(31)}, "sentences[1]"}}) {
    AdmissionRequest request = Request("a", 1);
    request.costs = costs;
    const Admission::Decision decision = admission.Decide(request);
    EXPECT_EQ(decision.verdict, Verdict::kTooLarge);
    EXPECT_THAT(decision.status, StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr(message)));
    EXPECT_EQ(RetryDelay(decision.status), std::nullopt);
  }
}

TEST_F(AdmissionTest, AFullQueueSaysWhenThereIsRoom) {
  Admission admission({.max_queued_tokens = 100}, {}, 1);
  admission.times().ObserveRound(1, 0.1);
  admission.times().ObserveSentence(10, 10);
  const WaitingSentence waiting = Sentence("a", 1, Cost(80));
  admission.Queued(waiting);
  const Admission::Decision decision =
      admission.Decide(Request("b", 30, milliseconds(100'000)));
  EXPECT_EQ(decision.verdict, Verdict::kQueueFull);
  EXPECT_THAT(decision.status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1 sentences and 80 tokens wait")));
  EXPECT_EQ(RetryDelay(decision.status), milliseconds(3000));
  admission.Dropped(waiting);
  EXPECT_OK(admission.Decide(Request("b", 30)).status);
  EXPECT_EQ(admission.queued_tokens(), 0);
}

TEST_F(AdmissionTest, ACallerHasAShareAndOthersTheirs) {
  Admission admission({.max_caller_tokens = 50}, {}, 1);
  EXPECT_OK(admission.Decide(Request("a", 60)).status);  // at first, anything
  const WaitingSentence waiting = Sentence("a", 1, Cost(40));
  admission.Queued(waiting);
  EXPECT_OK(admission.Decide(Request("a", 10)).status);
  EXPECT_OK(admission.Decide(Request("b", 50)).status);
  EXPECT_EQ(admission.Decide(Request("a", 11)).verdict, Verdict::kCallerLimit);
  admission.Joined(waiting);
  const Admission::Decision decision = admission.Decide(Request("a", 11));
  EXPECT_EQ(decision.verdict, Verdict::kCallerLimit);
  EXPECT_TRUE(RetryDelay(decision.status).has_value());
  admission.Left(waiting);
  EXPECT_OK(admission.Decide(Request("a", 11)).status);
}

TEST_F(AdmissionTest, WhoCannotBeAnsweredInTimeIsToldAtOnce) {
  Admission admission({.max_wait = milliseconds(8000)}, {.max_rows = 1}, 1);
  admission.times().ObserveRound(1, 0.1);
  admission.times().ObserveSentence(10, 10);
  // Nobody is there: whoever comes is taken, or nothing would ever be measured.
  EXPECT_OK(admission.Decide(Request("a", 50, milliseconds(1))).status);
  const WaitingSentence waiting = Sentence("bulk", 1, Cost(500));
  admission.Queued(waiting);
  EXPECT_DOUBLE_EQ(admission.EstimatedSeconds(), 50.0);
  // 10 tokens, and as many of the bulk: 2 s.
  EXPECT_OK(admission.Decide(Request("a", 10, milliseconds(2000))).status);
  const Admission::Decision late =
      admission.Decide(Request("a", 10, milliseconds(1500)));
  EXPECT_EQ(late.verdict, Verdict::kTooLate);
  EXPECT_THAT(late.status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("about 2000 ms, there are 1500 ms")));
  EXPECT_EQ(RetryDelay(late.status), milliseconds(500));
  // And whatever the deadline, not after max_wait.
  EXPECT_EQ(admission.Decide(Request("a", 41, milliseconds(60'000))).verdict,
            Verdict::kTooLate);
}

}  // namespace
}  // namespace gshard
