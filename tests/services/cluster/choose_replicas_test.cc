#include "services/cluster/choose_replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "services/base/random.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using State = WorkerHealth::State;

const std::vector<int32_t> kAll = {0, 1, 2, 3};

TEST(ChooseReplicasTest, SmallCallsGoToOneHolderLargeOnesToAll) {
  const std::vector<ReplicaHolder> holders = {{kAll}, {kAll}};
  EXPECT_THAT(ChooseReplicas({1, 1, 1, 1}, holders), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(ChooseReplicas({40, 30, 20, 10}, holders),
              ElementsAre(0, 1, 1, 0));
}

TEST(ChooseReplicasTest, TakesTheHolderWithFewerRowsOutstanding) {
  EXPECT_THAT(ChooseReplicas({5, 0, 0, 0}, {{kAll, 100}, {kAll, 99}}),
              ElementsAre(1, -1, -1, -1));
}

TEST(ChooseReplicasTest, ExpertsWithoutAChoiceAreMadeWayFor) {
  const std::vector<int32_t> first = {0, 1}, second = {1};
  // Expert 0 is on holder 0 only, so expert 1 goes to holder 1.
  EXPECT_THAT(ChooseReplicas({50, 60}, {{first}, {second}}), ElementsAre(0, 1));
}

TEST(ChooseReplicasTest, AvoidsAndSaysWhatNobodyHas) {
  const std::vector<int32_t> first = {0, 1}, second = {1, 2};
  EXPECT_THAT(ChooseReplicas({9, 9, 9}, {{first, 0, State::kFailed}, {second}}),
              ElementsAre(-1, 1, 1));
  EXPECT_THAT(ChooseReplicas({9, 0}, {}), ElementsAre(-1, -1));
}

TEST(ChooseReplicasTest, SlowOnesTakeWhatNoGoodOneHolds) {
  const std::vector<int32_t> first = {0, 1}, second = {1};
  for (const bool swapped : {false, true}) {
    std::vector<ReplicaHolder> holders = {{first, 0, State::kSlow},
                                          {second, 1000}};
    if (swapped) std::swap(holders[0], holders[1]);
    EXPECT_THAT(ChooseReplicas({9, 9}, holders),
                swapped ? ElementsAre(1, 0) : ElementsAre(0, 1));
  }
}

TEST(ChooseReplicasTest, IsSoundForAnyHolders) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const auto draw = [&](uint64_t i, uint64_t n) {
      return static_cast<int32_t>(RandomBelow(seed, i, n));
    };
    const int32_t E = 1 + draw(0, 20), H = 1 + draw(1, 6);
    std::vector<int32_t> rows;
    for (int32_t e = 0; e < E; ++e) rows.push_back(draw(10 + e, 50) - 10);
    std::vector<std::vector<int32_t>> lists(H);
    std::vector<ReplicaHolder> holders(H);
    for (int32_t h = 0; h < H; ++h) {
      for (int32_t e = 0; e < E; ++e) {
        if (draw(100 * (h + 1) + e, 2) == 0) lists[h].push_back(e);
      }
      holders[h] = {lists[h], draw(50 + h, 100), State(draw(70 + h, 3))};
    }
    const std::vector<int32_t> chosen = ChooseReplicas(rows, holders);
    EXPECT_EQ(ChooseReplicas(rows, holders), chosen);
    for (int32_t e = 0; e < E; ++e) {
      State best = State::kFailed;
      for (int32_t h = 0; h < H; ++h) {
        if (std::count(lists[h].begin(), lists[h].end(), e) > 0) {
          best = std::min(best, holders[h].state);
        }
      }
      EXPECT_EQ(chosen[e] >= 0, best != State::kFailed && rows[e] > 0);
      if (chosen[e] < 0) continue;
      EXPECT_EQ(holders[chosen[e]].state, best);
      EXPECT_EQ(std::count(lists[chosen[e]].begin(), lists[chosen[e]].end(), e),
                1);
    }
  }
}

}  // namespace
}  // namespace gshard
