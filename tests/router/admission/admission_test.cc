// Admission, its estimates and its bookkeeping, in virtual time.

#include "router/admission/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/base/random.h"
#include "services/base/retry_delay.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr SteadyTime kNow{std::chrono::hours(5)};

SentenceCost Cost(int64_t source_tokens, int64_t rows = 1) {
  return {.source_tokens = source_tokens,
          .rows = rows,
          .positions = source_tokens + rows * 2 * source_tokens,
          .rounds = static_cast<double>(source_tokens)};
}

WaitingSentence Sentence(std::string caller, uint64_t flow,
                         const SentenceCost& cost,
                         SteadyTime deadline = SteadyTime::max()) {
  return {.caller = std::move(caller),
          .flow = flow,
          .request = flow,
          .sentence = 0,
          .cost = cost,
          .arrival = {},
          .deadline = deadline};
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

TEST(ServiceTimesTest, TimeIsSharedByRowsAndBatches) {
  ServiceTimes times;
  times.ObserveRound(10, 0.01);
  // 2000 rounds of one row, 100 rows at a time.
  EXPECT_DOUBLE_EQ(times.Seconds(2000, 100, 1000, 1, 1), 20 * 0.01);
  EXPECT_DOUBLE_EQ(times.Seconds(2000, 100, 50, 1, 1), 40 * 0.01);
  EXPECT_DOUBLE_EQ(times.Seconds(2000, 100, 50, 2, 1), 20 * 0.01);
  // Two lanes take turns, 50 rows at a time.
  EXPECT_DOUBLE_EQ(times.Seconds(2000, 100, 1000, 1, 2), 40 * 0.01);
}

TEST(ServiceTimesTest, WhoWaitsDoesSoForWhatIsBeforeItAndThenTakesItsTime) {
  ServiceTimes times;
  times.ObserveRound(10, 0.01);
  // Every sentence has rows.
  EXPECT_DOUBLE_EQ(times.PaceOf(100, 50, 2, 1).Seconds(1000, 30), 30 * 0.01);
  // Another sentence occupies the only row.
  EXPECT_DOUBLE_EQ(times.PaceOf(2, 1, 1, 1).Seconds(1000 + 30, 30),
                   1030 * 0.01);
  // The 970 rounds of one row ahead of it take 9.7 rounds of a hundred rows.
  EXPECT_DOUBLE_EQ(times.PaceOf(101, 50, 2, 2).Seconds(970 + 30, 30),
                   (9.7 + 30) * 0.01);
}

TEST(ServiceTimesTest, LanesTakeTurns) {
  ServiceTimes times;
  times.ObserveRound(10, 0.01);
  // Each of eight lanes has a turn while two run, and rows of its own.
  EXPECT_DOUBLE_EQ(times.PaceOf(400, 50, 2, 8).Seconds(1000, 30),
                   4 * 30 * 0.01);
  // When these are full, lanes do not make the work before it take longer.
  EXPECT_DOUBLE_EQ(times.PaceOf(401, 50, 2, 8).Seconds(970 + 30, 30),
                   (9.7 + 4 * 30) * 0.01);
}

SentenceCost Estimated(const CallerCosts& costs, const std::string& caller,
                       SentenceCost cost) {
  costs.Estimate(caller, cost);
  return cost;
}

TEST(SentenceCostTest, WhoIsLateIsExpectedToBeLateByAsMuchAgain) {
  SentenceCost cost = Cost(20);
  EXPECT_EQ(cost.WorkLeft(0), 20);
  EXPECT_EQ(cost.WorkLeft(15), 5);
  EXPECT_EQ(cost.WorkLeft(20), 1);
  EXPECT_EQ(cost.WorkLeft(50), 30);
  cost.max_rounds = 60;
  EXPECT_EQ(cost.WorkLeft(50), 10);
  EXPECT_EQ(cost.WorkLeft(70), 1);
}

TEST(CallerCostsTest, EachCallersSentencesAreItsOwn) {
  CallerCosts costs;
  EXPECT_EQ(Estimated(costs, "a", Cost(10)).rounds, 10);  // default estimate
  costs.Observe("long", 10, 200, 1.0);
  EXPECT_EQ(Estimated(costs, "long", Cost(10)).rounds, 200);
  SentenceCost bounded = Cost(10);
  bounded.max_rounds = 50;
  EXPECT_EQ(Estimated(costs, "long", bounded).rounds, 50);
  // One caller's history does not affect the estimates of others.
  EXPECT_EQ(Estimated(costs, "a", Cost(10)).rounds, 10);
  for (const char* caller : {"a", "b"}) costs.Observe(caller, 10, 15, 0.5);
  EXPECT_EQ(Estimated(costs, "c", Cost(10)).rounds, 15);
  EXPECT_EQ(costs.UsualRounds(), 1.5);
}

TEST(CallerCostsTest, WhoseRowsGoToBusyExpertsPaysForThem) {
  CallerCosts costs;
  for (int i = 0; i < 10; ++i) {
    costs.Observe("hot", 10, 10, 3.0);
    costs.Observe("even", 10, 10, 0.5);
  }
  const SentenceCost hot = Estimated(costs, "hot", Cost(10));
  EXPECT_NEAR(hot.row_cost, 3.0, 0.1);
  EXPECT_NEAR(hot.work(), 30, 1);
  // The row cost of other callers is unchanged.
  EXPECT_EQ(Estimated(costs, "even", Cost(10)).row_cost, 1);
  EXPECT_NEAR(costs.HighestRowCost(), 3.0, 0.1);
}

// Costs decay, or a caller refused for its past costs would never be accepted
// again.
TEST(CallerCostsTest, WhatWasOnceIsForgotten) {
  CallerCosts costs;
  costs.Observe("a", 10, 200, 9.0);
  for (int i = 0; i < 10'000; ++i) costs.Observe("b", 10, 10, 1.0);
  EXPECT_NEAR(Estimated(costs, "a", Cost(10)).rounds, 10, 0.5);
  EXPECT_NEAR(Estimated(costs, "a", Cost(10)).row_cost, 1, 0.05);
}

TEST(CallerCostsTest, WhoWasSilentLongestIsForgottenFirst) {
  CallerCosts costs;
  const auto name = [](size_t i) { return std::to_string(i); };
  for (size_t i = 0; i < CallerCosts::kMaxCallers; ++i) {
    costs.Observe(name(i), 10, 30, 2.0);
  }
  costs.Observe(name(0), 10, 30, 2.0);
  costs.Observe("new", 10, 30, 2.0);
  EXPECT_GT(Estimated(costs, name(0), Cost(10)).row_cost, 1.5);
  EXPECT_GT(Estimated(costs, name(2), Cost(10)).row_cost, 1.4);
  EXPECT_EQ(Estimated(costs, name(1), Cost(10)).row_cost, 1);
}

class OutstandingWorkTest : public ::testing::Test {
 protected:
  static SteadyTime At(int64_t s) {
    return SteadyTime() + std::chrono::seconds(s);
  }
  static Demand Asks(int64_t deadline, double work, bool promised = true) {
    return {.caller = "a",
            .flow = 2,
            .deadline = At(deadline),
            .work = work,
            .longest = work,
            .promised = promised};
  }
  SchedulabilityEstimate Estimate(const Demand& demand) const {
    return work_.Estimate(demand, At(0), {.work_seconds = 0.1}, 1.0);
  }
  SchedulabilityEstimate Estimate(int64_t deadline, double work) const {
    return Estimate(Asks(deadline, work));
  }
  OutstandingWork work_;
};

TEST_F(OutstandingWorkTest, WhatIsDueEarlierGoesFirst) {
  const WaitingSentence soon = Sentence("b", 1, Cost(30), At(10));
  const WaitingSentence later = Sentence("a", 2, Cost(50), At(20));
  work_.Take(soon);
  work_.Take(later);
  EXPECT_DOUBLE_EQ(Estimate(5, 10).seconds, 1.0);
  EXPECT_DOUBLE_EQ(Estimate(10, 10).seconds, 4.0);
  EXPECT_DOUBLE_EQ(Estimate(20, 10).seconds, 9.0);
  EXPECT_EQ(work_.WaitsOf(Asks(19, 10)).caller, 0);
  EXPECT_EQ(work_.WaitsOf(Asks(20, 10)).caller, 50);
  EXPECT_EQ(work_.WaitsOf(Asks(20, 10)).flow, 50);
  work_.Begin(later);
  work_.Progress(this, 25, At(20));
  EXPECT_DOUBLE_EQ(Estimate(5, 10).seconds, 3.5);  // half of what runs is done
  work_.Progress(this, 0, {});
  EXPECT_EQ(work_.TokensOf("a"), 50);
  work_.Finish(later);
  EXPECT_EQ(work_.TokensOf("a"), 0);
  work_.Drop(soon);
  EXPECT_TRUE(work_.empty());
  EXPECT_EQ(work_.work(), 0);
}

TEST_F(OutstandingWorkTest, PromisesAreNotBroken) {
  work_.Take(Sentence("b", 1, Cost(80), At(10)));
  EXPECT_FALSE(Estimate(5, 20).breaks_promises);
  EXPECT_TRUE(Estimate(5, 21).breaks_promises);
  EXPECT_FALSE(Estimate(10, 21).breaks_promises);  // queued after it
  // A sentence that is late anyway has no promise to break.
  work_.Take(Sentence("b", 2, Cost(40), At(11)));
  EXPECT_FALSE(Estimate(5, 20).breaks_promises);
}

// A sentence with too much work for its deadline (an idle router accepts it)
// delays others only until its deadline, when it is given up.
TEST_F(OutstandingWorkTest, WhatIsGivenUpHoldsUpNobody) {
  const WaitingSentence endless = Sentence("b", 1, Cost(500), At(2));
  work_.Take(endless);
  work_.Take(Sentence("b", 2, Cost(10), At(6)));
  EXPECT_DOUBLE_EQ(Estimate(10, 10).seconds, 4.0);
  EXPECT_FALSE(Estimate(5, 30).breaks_promises);
  EXPECT_TRUE(Estimate(5, 31).breaks_promises);
  EXPECT_TRUE(
      work_.SlackAt(At(0), {.work_seconds = 0.1}, 1.0).Allows(At(7), 30));
  work_.Begin(endless);
  work_.Progress(this, 490, At(2));
  EXPECT_DOUBLE_EQ(Estimate(10, 10).seconds, 4.0);
}

// A sentence without a promise takes turns but delays no promised sentence.
TEST_F(OutstandingWorkTest, NoPromiseWaitsForWhatIsNotPromised) {
  WaitingSentence unpromised = Sentence("a", 1, Cost(50), At(6));
  unpromised.promised = false;
  work_.Take(unpromised);
  EXPECT_DOUBLE_EQ(Estimate(10, 10).seconds, 1.0);
  EXPECT_DOUBLE_EQ(Estimate(Asks(10, 10, false)).seconds, 6.0);
  EXPECT_FALSE(Estimate(5, 20).breaks_promises);
  EXPECT_TRUE(Estimate(Asks(5, 20, false)).breaks_promises);
  // The sentence counts as its caller's waiting work, whatever its deadline.
  EXPECT_EQ(work_.WaitsOf(Asks(3, 10)).caller, 50);
  EXPECT_EQ(work_.WaitsOf(Asks(3, 10)).flow, 0);
  const auto allows_all = [&] {
    return work_.SlackAt(At(0), {.work_seconds = 0.1}, 1.0).Allows(At(20), 1e6);
  };
  EXPECT_TRUE(allows_all());
  work_.Take(Sentence("b", 2, Cost(10), At(8)));
  EXPECT_FALSE(allows_all());
  work_.Drop(unpromised);
  EXPECT_DOUBLE_EQ(Estimate(Asks(10, 10, false)).seconds, 2.0);
}

TEST_F(OutstandingWorkTest, SlackIsWhatOthersCanWaitFor) {
  work_.Take(Sentence("b", 1, Cost(80), At(10)));
  work_.Take(Sentence("b", 2, Cost(10), At(12)));
  Slack slack = work_.SlackAt(At(0), {.work_seconds = 0.1}, 1.0);
  EXPECT_EQ(slack.first(), At(10));
  EXPECT_TRUE(slack.Allows(At(10), 1000));  // nothing is due before it
  EXPECT_TRUE(slack.Allows(At(12), 20));
  EXPECT_FALSE(slack.Allows(At(12), 21));
  slack.Spend(At(10), 80);
  EXPECT_TRUE(slack.Allows(At(13), 20));
  slack.Spend(At(13), 15);
  EXPECT_TRUE(slack.Allows(At(13), 5));
  EXPECT_FALSE(slack.Allows(At(13), 6));
}

class AdmissionTest : public ::testing::Test {
 protected:
  static AdmissionRequest Request(std::string caller, int64_t tokens,
                                  milliseconds time_left = milliseconds(9999),
                                  uint64_t flow = 7) {
    return {.caller = std::move(caller),
            .flow = flow,
            .costs = {Cost(tokens)},
            .now = kNow,
            .deadline = kNow + time_left};
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

// One caller gets two thirds of the rows and of the cache, whichever is short.
TEST_F(AdmissionTest, AShortCacheLimitsABatchAsFewRowsDo) {
  Admission few_rows({}, {.max_rows = 14}, 1);
  Admission short_cache({}, {.max_positions = 15 * Cost(10).positions}, 1);
  for (Admission* const admission : {&few_rows, &short_cache}) {
    admission->times().ObserveRound(1, 0.1);
    for (uint64_t i = 0; i < 20; ++i) {
      admission->Queued(Sentence("a", i, Cost(10)));
    }
    // Ten rows at a time: 20 rounds.
    EXPECT_DOUBLE_EQ(admission->EstimatedSeconds(), 2.0);
  }
}

TEST_F(AdmissionTest, AQueueOfShortSentencesIsFullByTheirNumber) {
  Admission admission({.max_queued_sentences = 2}, {}, 1);
  const WaitingSentence first = Sentence("a", 1, Cost(1));
  admission.Queued(first);
  admission.Queued(Sentence("a", 2, Cost(1)));
  const Admission::Decision decision = admission.Decide(Request("b", 1));
  EXPECT_EQ(decision.verdict, Verdict::kQueueFull);
  // Without any measurement, the retry delay is at least 10 ms.
  EXPECT_EQ(RetryDelay(decision.status), milliseconds(10));
  // The retry delay is at most a minute, however slow a measured round was.
  admission.times().ObserveRound(1, 3600.0);
  EXPECT_EQ(RetryDelay(admission.Decide(Request("b", 1)).status),
            milliseconds(60'000));
  admission.Dropped(first);
  EXPECT_NE(admission.Decide(Request("b", 1)).verdict, Verdict::kQueueFull);
}

TEST_F(AdmissionTest, ACallerHasAShareAndOthersTheirs) {
  Admission admission({.max_caller_tokens = 50}, {}, 1);
  EXPECT_OK(admission.Decide(Request("a", 60)).status);  // the first: any size
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
  // An idle router accepts any request, or nothing would ever be measured.
  const auto alone = admission.Decide(Request("a", 50, milliseconds(1)));
  EXPECT_OK(alone.status);
  EXPECT_FALSE(alone.promised);
  admission.Queued(Sentence("bulk", 1, Cost(20), kNow + milliseconds(2100)));
  EXPECT_DOUBLE_EQ(admission.EstimatedSeconds(), 2.0);
  // The queued sentence and 10 tokens take 3 s, plus a safety margin.
  const auto taken = admission.Decide(Request("a", 10, milliseconds(3200)));
  EXPECT_OK(taken.status);
  EXPECT_TRUE(taken.promised);
  const Admission::Decision late =
      admission.Decide(Request("a", 10, milliseconds(2650)));
  EXPECT_EQ(late.verdict, Verdict::kTooLate);
  EXPECT_THAT(late.status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("about 3150 ms, there are 2650 ms")));
  EXPECT_EQ(RetryDelay(late.status), milliseconds(501));
  // max_wait limits the estimate whatever the deadline.
  EXPECT_EQ(admission.Decide(Request("a", 60, milliseconds(60'000))).verdict,
            Verdict::kTooLate);
}

TEST_F(AdmissionTest, WhoWasTakenIsNotMadeLateByOthers) {
  Admission admission({}, {.max_rows = 1}, 1);
  admission.times().ObserveRound(1, 0.1);
  admission.Queued(Sentence("bulk", 1, Cost(100), kNow + milliseconds(12'000)));
  EXPECT_OK(admission.Decide(Request("a", 10, milliseconds(2000))).status);
  const auto decision = admission.Decide(Request("a", 15, milliseconds(2000)));
  EXPECT_EQ(decision.verdict, Verdict::kWouldViolateSlo);
  EXPECT_TRUE(RetryDelay(decision.status).has_value());
}

TEST_F(AdmissionTest, ThereIsAlwaysRoomForAnotherCaller) {
  Admission admission({}, {.max_rows = 1}, 1);
  admission.times().ObserveRound(1, 0.1);
  const SteadyTime deadline = kNow + milliseconds(10'500);  // 100 tokens
  admission.Queued(Sentence("a", 1, Cost(60), deadline));
  EXPECT_OK(admission.Decide(Request("a", 6, milliseconds(10'500))).status);
  const auto decision = admission.Decide(Request("a", 7, milliseconds(10'500)));
  EXPECT_EQ(decision.verdict, Verdict::kOverShare);
  EXPECT_TRUE(RetryDelay(decision.status).has_value());
  EXPECT_OK(admission.Decide(Request("b", 39, milliseconds(10'500))).status);
  // A flow gets part of its caller's share: four sevenths of all work.
  EXPECT_OK(admission.Decide(Request("a", 6, milliseconds(10'500), 2)).status);
  EXPECT_EQ(admission.Decide(Request("a", 1, milliseconds(10'500), 1)).verdict,
            Verdict::kOverShare);
}

TEST_F(AdmissionTest, WhereThereAreOthersLittleOfACallerWaits) {
  Admission admission({}, {.max_rows = 1}, 1);
  admission.times().ObserveRound(1, 0.1);
  const auto ask = [&](int64_t tokens, uint64_t flow = 7) {
    return admission.Decide(Request("a", tokens, milliseconds(10'500), flow))
        .verdict;
  };
  admission.Queued(Sentence("a", 1, Cost(10), kNow + milliseconds(10'500)));
  admission.callers().Observe("a", 10, 10, 1);
  EXPECT_EQ(ask(56), Verdict::kAdmitted);
  EXPECT_EQ(ask(57), Verdict::kOverShare);
  admission.callers().Observe("b", 10, 10, 1);
  EXPECT_EQ(ask(10), Verdict::kAdmitted);
  EXPECT_EQ(ask(11), Verdict::kOverShare);
  EXPECT_EQ(ask(4, 1), Verdict::kAdmitted);
  EXPECT_EQ(ask(5, 1), Verdict::kOverShare);
}

// A share is two thirds of all work for a lone caller, and a fifth beside
// others. Requests beyond it are accepted without a promise.
TEST_F(AdmissionTest, WhatIsMoreThanAShareIsNotPromised) {
  Admission admission({}, {.max_rows = 1}, 1);
  admission.times().ObserveRound(1, 0.1);
  const auto ask = [&](const char* caller, int64_t tokens) {
    return admission.Decide(Request(caller, tokens, milliseconds(10'500)));
  };
  for (const bool others : {false, true}) {
    SCOPED_TRACE(others);
    if (others) admission.callers().Observe("b", 10, 10, 1);
    const int64_t share = others ? 20 : 66;
    EXPECT_TRUE(ask("a", share).promised);
    EXPECT_FALSE(ask("a", share + 1).promised);
    EXPECT_OK(ask("a", share + 1).status);
  }
  // Promised requests do not wait for unpromised work.
  WaitingSentence unpromised =
      Sentence("a", 1, Cost(80), kNow + milliseconds(10'000));
  unpromised.promised = false;
  admission.Queued(unpromised);
  EXPECT_TRUE(ask("b", 60).promised);
  EXPECT_EQ(ask("b", 70).verdict, Verdict::kTooLate);
}

TEST_F(AdmissionTest, WhatTakesTwiceTheTimeThatIsLeftMissesItsDeadline) {
  Admission admission({}, {}, 1);
  const auto misses_deadline = [&](int64_t tokens, int64_t left_ms) {
    return admission.MissesDeadline(
        Sentence("a", 1, Cost(tokens), kNow + milliseconds(left_ms)), kNow);
  };
  EXPECT_FALSE(misses_deadline(10, 1));  // no measurements yet
  admission.times().ObserveRound(1, 0.1);
  EXPECT_FALSE(misses_deadline(10, 501));
  EXPECT_TRUE(misses_deadline(10, 499));
  EXPECT_FALSE(misses_deadline(9, 499));
  // If four lanes take turns, it has every fourth round.
  admission.SetLanes(4);
  EXPECT_FALSE(misses_deadline(10, 2001));
  EXPECT_TRUE(misses_deadline(10, 1999));
}

TEST_F(AdmissionTest, EstimatesAreCorrectedByWhoWasLate) {
  Admission admission({}, {.max_rows = 1}, 1);
  admission.times().ObserveRound(1, 0.1);
  admission.Queued(Sentence("b", 1, Cost(20), kNow + milliseconds(3000)));
  const AdmissionRequest request = Request("a", 10, milliseconds(4000));
  EXPECT_OK(admission.Decide(request).status);
  EXPECT_OK(admission.Decide(request).status);
  for (int i = 0; i < 10; ++i) admission.Broken();
  EXPECT_EQ(admission.Decide(request).verdict, Verdict::kTooLate);
  for (int i = 0; i < 500; ++i) admission.Kept();
  EXPECT_OK(admission.Decide(request).status);
}

}  // namespace
}  // namespace gshard
