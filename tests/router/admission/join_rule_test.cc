// FairQueue and the rule for joining a batch, without clock or threads.

#include "router/admission/join_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "services/base/random.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

WaitingSentence Waiting(std::string caller, uint64_t flow, uint64_t request,
                        int64_t source_tokens = 10, int64_t rows = 1) {
  return {.caller = std::move(caller),
          .flow = flow,
          .request = request,
          .sentence = 0,
          .cost = {.source_tokens = source_tokens,
                   .rows = rows,
                   .positions = source_tokens + rows * 20,
                   .rounds = static_cast<double>(source_tokens)},
          .arrival = {}};
}

std::vector<uint64_t> Requests(const std::vector<WaitingSentence>& sentences) {
  std::vector<uint64_t> requests;
  for (const WaitingSentence& sentence : sentences) {
    requests.push_back(sentence.request);
  }
  return requests;
}

TEST(FairQueueTest, CallersTakeTurnsByTheTokensTheyGot) {
  FairQueue queue;
  for (uint64_t i = 0; i < 3; ++i) queue.Add(Waiting("bulk", 1, i));
  queue.Add(Waiting("small", 2, 10, /*source_tokens=*/5));
  queue.Add(Waiting("small", 2, 11, /*source_tokens=*/5));
  queue.Add(Waiting("small", 2, 12, /*source_tokens=*/5));
  std::vector<uint64_t> order;
  while (queue.Next() != nullptr) order.push_back(queue.Take().request);
  // bulk got 10 tokens; small 5, then 10: the tie goes to the earlier arrival.
  EXPECT_THAT(order, ElementsAre(0, 10, 11, 1, 12, 2));
}

TEST(FairQueueTest, FlowsOfACallerTakeTurnsToo) {
  FairQueue queue;
  for (uint64_t i = 0; i < 3; ++i) queue.Add(Waiting("proxy", 1, i));
  queue.Add(Waiting("proxy", 2, 10));
  queue.Add(Waiting("other", 3, 20));
  std::vector<uint64_t> order;
  while (queue.Next() != nullptr) order.push_back(queue.Take().request);
  EXPECT_THAT(order, ElementsAre(0, 20, 10, 1, 2));
}

// A newcomer gets its share from its arrival on, without credit for the past.
TEST(FairQueueTest, NewcomersAreNotOwedThePast) {
  FairQueue queue;
  for (uint64_t i = 0; i < 9; ++i) queue.Add(Waiting("a", 1, i));
  for (int i = 0; i < 5; ++i) queue.Take();
  for (uint64_t i = 10; i < 14; ++i) queue.Add(Waiting("b", 2, i));
  std::vector<uint64_t> order;
  while (queue.Next() != nullptr) order.push_back(queue.Take().request);
  EXPECT_THAT(order, ElementsAre(5, 10, 6, 11, 7, 12, 8, 13));
}

// A steady stream of newcomers does not starve waiting callers.
TEST(FairQueueTest, NewcomersDoNotStarveTheOthers) {
  FairQueue queue;
  for (uint64_t i = 0; i < 10; ++i) queue.Add(Waiting("old", 1, i));
  int taken = 0;
  for (uint64_t i = 100; i < 200; ++i) {
    queue.Add(Waiting("new" + std::to_string(i), i, i));
    taken += queue.Take().caller == "old";
  }
  EXPECT_EQ(taken, 10);
}

TEST(FairQueueTest, RemovedRequestsLeaveNothing) {
  FairQueue queue;
  queue.Add(Waiting("a", 1, 1));
  queue.Add(Waiting("a", 1, 2, 10, 4));
  queue.Add(Waiting("a", 1, 1));
  queue.Remove("a", 1, 1);
  queue.Remove("a", 1, 99);
  queue.Remove("nobody", 1, 1);
  EXPECT_EQ(queue.sentences(), 1);
  EXPECT_EQ(queue.tokens(), 40);
  EXPECT_EQ(queue.Take().request, 2u);
  EXPECT_EQ(queue.Next(), nullptr);
  EXPECT_TRUE(queue.empty());
}

TEST(JoinRuleTest, FillsRowsPositionsAndEncoding) {
  const auto join = [](const BatchLimits& limits, const BatchLoad& load = {}) {
    FairQueue queue;
    for (uint64_t i = 0; i < 5; ++i) queue.Add(Waiting("a", 1, i, 10, 2));
    return Requests(TakeJoining(queue, load, limits));
  };
  EXPECT_THAT(join({}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(join({.max_rows = 9}), ElementsAre(0, 1, 2));
  EXPECT_THAT(join({.max_rows = 7}, {.sentences = 1, .rows = 4}),
              ElementsAre(0));
  EXPECT_THAT(join({.max_rows = 7}, {.sentences = 1, .rows = 6}), IsEmpty());
  EXPECT_THAT(join({.max_positions = 150}), ElementsAre(0, 1));
  EXPECT_THAT(join({.max_positions = 150}, {.sentences = 1, .positions = 101}),
              IsEmpty());
  EXPECT_THAT(join({.max_encode_tokens = 29}), ElementsAre(0, 1));
  // One sentence always joins, unless the cache has no room for it.
  EXPECT_THAT(join({.max_rows = 1}), ElementsAre(0));
  EXPECT_THAT(join({.max_encode_tokens = 1}), ElementsAre(0));
  EXPECT_THAT(join({.max_positions = 49}), IsEmpty());
}

TEST(JoinRuleTest, PaddingCountsAsEncoding) {
  FairQueue queue;
  queue.Add(Waiting("a", 1, 0, 2));
  queue.Add(Waiting("b", 2, 1, 2));
  queue.Add(Waiting("c", 3, 2, 20));
  EXPECT_THAT(Requests(TakeJoining(queue, {}, {.max_encode_tokens = 59})),
              ElementsAre(0, 1));
}

TEST(JoinRuleTest, ACallerLeavesRoomForOthers) {
  const auto join = [](int64_t max_rows, int callers) {
    FairQueue queue;
    for (uint64_t i = 0; i < 1000; ++i) {
      queue.Add(Waiting("greedy" + std::to_string(i % callers), 1, i));
    }
    BatchLoad load;
    const BatchLimits limits{.max_rows = max_rows, .max_encode_tokens = 9999};
    for (const auto& one : TakeJoining(queue, load, limits)) {
      load.Add(one);
    }
    return load.rows;
  };
  EXPECT_EQ(join(128, 1), 86);
  EXPECT_EQ(join(128, 2), 103);
  EXPECT_EQ(join(32, 1), 22);
  EXPECT_EQ(join(8, 1), 6);
  EXPECT_EQ(join(2, 1), 2);
  EXPECT_EQ(join(1, 1), 1);
  for (const int64_t max_rows : {1, 7, 8, 9, 16, 32, 128, 1000}) {
    EXPECT_EQ(RowsOfOneCaller({.max_rows = max_rows}), join(max_rows, 1));
  }
  // The same of the cache's positions.
  FairQueue large;
  for (uint64_t i = 0; i < 100; ++i) large.Add(Waiting("greedy", 1, i));
  large.Add(Waiting("modest", 2, 100));
  BatchLoad load;
  for (const auto& one : TakeJoining(large, load,
                                     {.max_rows = 9999,
                                     .max_positions = 3000,
                                     .max_encode_tokens = 9999})) {
    load.Add(one);
  }
  EXPECT_EQ(PositionsOfOneCaller({.max_positions = 3000}), 2000);
  EXPECT_EQ(load.callers.at("greedy").positions, 1980);
  EXPECT_EQ(load.callers.at("modest").positions, 30);
  load.Remove(Waiting("modest", 2, 100));
  EXPECT_EQ(load.positions, 1980);
  // A caller without rows may take the whole batch.
  FairQueue queue;
  queue.Add(Waiting("beam", 1, 0, 10, 64));
  EXPECT_THAT(Requests(TakeJoining(queue, {}, {.max_rows = 64})),
              ElementsAre(0));
}

TEST(JoinRuleTest, RowsCountByWhatTheyCost) {
  FairQueue queue;
  for (uint64_t i = 0; i < 100; ++i) {
    WaitingSentence sentence = Waiting("hot", 1, i);
    sentence.cost.row_cost = 4;
    queue.Add(std::move(sentence));
  }
  // 11 sentences cost 4 * 11, twice the 33 - 11 rows that they leave free.
  EXPECT_EQ(TakeJoining(queue, {}, {.max_rows = 32}).size(), 11u);
}

// Long sentences, which each take the encoding of four steps, beside other
// callers: those steps pass before the next long one joins, and short ones join
// meanwhile. A caller alone in the batch does not wait.
TEST(JoinRuleTest, LongSentencesAreEncodedNowAndThen) {
  const BatchLimits limits{.max_encode_tokens = 10};
  const auto run = [&](bool beside, bool hurried) {
    FairQueue queue;
    BatchLoad load;
    std::vector<std::string> joined;
    if (beside) load.Add(Waiting("other", 2, 1));
    for (uint64_t i = 0; i < 9; ++i) queue.Add(Waiting("long", 1, i, 40));
    for (int step = 0; step < 9; ++step) {
      if (step == 2) queue.Add(Waiting("short", 3, 1, 5));
      std::string who;
      Slack slack(/*work_seconds=*/0.1);
      if (hurried) slack.Add(SteadyTime(), 0);
      for (const WaitingSentence& one :
           TakeJoining(queue, load, limits, slack)) {
        load.Add(one);
        load.Encode(one);
        who += one.caller;
      }
      load.Step(limits);
      joined.push_back(who);
    }
    return joined;
  };
  for (const bool hurried : {false, true}) {
    SCOPED_TRACE(hurried);
    EXPECT_THAT(run(true, hurried), ElementsAre("long", "", "short", "", "long",
                                                "", "", "", "long"));
    EXPECT_THAT(run(false, hurried), ElementsAre("long", "long", "short", "",
                                                 "", "", "", "", "long"));
  }
}

// Encoding counts as work. Otherwise a batch with short translations and much
// to encode would be expected to end sooner than it can.
TEST(JoinRuleTest, EncodingIsWork) {
  SentenceCost cost{.source_tokens = 60, .rows = 2, .rounds = 3};
  EXPECT_EQ(cost.work(), 6);
  cost.encode_work = EncodeWork(60, {.max_rows = 11, .max_encode_tokens = 30});
  EXPECT_EQ(cost.work(), 16);  // two steps of the 8 rows that a caller may have
  cost.rounds = 20;
  EXPECT_EQ(cost.work(), 40);
}

TEST(JoinRuleTest, NobodyOvertakesALargeSentence) {
  FairQueue queue;
  queue.Add(Waiting("a", 1, 0, 10, 8));
  queue.Add(Waiting("b", 2, 1, 10, 1));
  EXPECT_THAT(Requests(TakeJoining(queue, {.sentences = 2, .rows = 5},
                                   {.max_rows = 8})),
              IsEmpty());
  EXPECT_EQ(queue.sentences(), 2);
}

// Turns are fair until a promised sentence would be late, which then goes
// first. Sentences that are late anyway do not count.
TEST(JoinRuleTest, WhoIsDueFirstGoesFirstWhenItWouldBeLate) {
  const auto at = [](int seconds) {
    return SteadyTime() + std::chrono::seconds(seconds);
  };
  const auto join = [&](double left) {
    FairQueue queue;
    const auto add = [&](const char* caller, uint64_t request, int deadline,
                         bool promised = true) {
      WaitingSentence sentence = Waiting(caller, request, request);
      sentence.promised = promised;
      sentence.deadline = at(deadline);
      queue.Add(std::move(sentence));
    };
    add("a", 0, 1);  // already lost: not in the slack
    add("a", 1, 5);
    add("a", 2, 5);
    add("b", 3, 9);
    add("c", 4, 9);
    add("d", 5, 6, /*promised=*/false);
    Slack slack(/*work_seconds=*/0.1);  // a sentence takes a second
    slack.Add(at(5), left);
    slack.Add(at(9), left);
    return Requests(TakeJoining(queue, {}, {}, slack));
  };
  EXPECT_THAT(join(2.5), ElementsAre(0, 3, 4, 1, 2, 5));
  EXPECT_THAT(join(1.5), ElementsAre(0, 3, 1, 2, 4, 5));
  EXPECT_THAT(join(0.5), ElementsAre(0, 1, 2, 3, 4, 5));
}

// A document of 400 sentences beside single sentences, in virtual time: a
// sentence takes one step per source token, and a batch has 8 rows. No single
// sentence waits for another to end, the document ends, limits hold, and while
// work is queued at most two rows, reserved for other callers, are idle.
TEST(JoinRuleTest, ADocumentNeitherStarvesNorIsStarved) {
  constexpr int64_t kRows = 8;
  FairQueue queue;
  for (uint64_t i = 0; i < 400; ++i) {
    queue.Add(Waiting("bulk", 1, 1, 5 + RandomBelow(1, i, 10)));
  }
  std::vector<std::pair<int64_t, WaitingSentence>> running;  // with their ends
  std::map<uint64_t, int64_t> arrived;
  int64_t longest_wait = 0, document = 0, idle_rows = 0, steps = 0;
  uint64_t last = 100;
  for (int64_t now = 0; document < 400; ++now) {
    ASSERT_LT(now, 2000);
    if (now % 7 == 0) {
      arrived[++last] = now;
      queue.Add(Waiting("caller" + std::to_string(last % 3), last, last, 6));
    }
    BatchLoad load;
    for (const auto& [until, sentence] : running) load.Add(sentence);
    for (WaitingSentence& joining :
         TakeJoining(queue, load, {.max_rows = kRows})) {
      if (joining.request != 1) {
        longest_wait = std::max(longest_wait, now - arrived[joining.request]);
      }
      running.emplace_back(now + joining.cost.source_tokens,
                           std::move(joining));
    }
    ASSERT_LE(static_cast<int64_t>(running.size()), kRows);
    if (queue.sentences() > 0) {
      idle_rows += kRows - static_cast<int64_t>(running.size());
      ++steps;
    }
    std::erase_if(running, [&](const auto& entry) {
      if (entry.first > now + 1) return false;
      document += entry.second.request == 1;
      return true;
    });
  }
  EXPECT_EQ(longest_wait, 0);
  EXPECT_LE(idle_rows, 2 * steps);
}

}  // namespace
}  // namespace gshard
