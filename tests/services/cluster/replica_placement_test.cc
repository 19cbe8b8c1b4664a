#include "services/cluster/replica_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/cluster/placement.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ReplicaProblem Problem(int32_t experts, int32_t workers, int32_t replicas) {
  ReplicaProblem problem;
  problem.num_experts = experts;
  problem.replicas = replicas;
  problem.workers.resize(workers);
  return problem;
}

// Random sizes, loads (some experts hot), speeds and memory limits.
ReplicaProblem RandomProblem(uint64_t seed) {
  const auto draw = [&](uint64_t i, uint64_t n) {
    return static_cast<int32_t>(RandomBelow(seed, i, n));
  };
  ReplicaProblem problem =
      Problem(1 + draw(0, 40), 1 + draw(1, 9), 1 + draw(2, 4));
  if (draw(3, 3) > 0) {
    for (int32_t e = 0; e < problem.num_experts; ++e) {
      problem.load.push_back(
          draw(10 + e, 10) == 0 ? 1000.0 : RandomUniform(seed, 100 + e) * 20.0);
    }
  }
  const bool uneven = draw(4, 3) == 0;
  for (size_t w = 0; w < problem.workers.size(); ++w) {
    if (uneven) problem.workers[w].rows_per_second = 1 + draw(200 + w, 4);
    if (draw(5, 2) == 0) {
      problem.workers[w].max_experts = draw(300 + w, problem.num_experts + 1);
    }
  }
  return problem;
}

std::vector<int32_t> CountsOf(const ReplicaProblem& problem,
                              const ExpertLists& lists) {
  std::vector<int32_t> counts(problem.num_experts);
  for (const auto& list : lists) {
    for (const int32_t expert : list) ++counts[expert];
  }
  return counts;
}

// Each worker has ascending experts, so no two replicas of one.
void ExpectSound(const ReplicaProblem& problem, const ExpertLists& lists) {
  ASSERT_EQ(lists.size(), problem.workers.size());
  for (size_t w = 0; w < lists.size(); ++w) {
    int32_t previous = -1;
    for (const int32_t expert : lists[w]) {
      EXPECT_GT(expert, previous);
      EXPECT_LT(expert, problem.num_experts);
      previous = expert;
    }
    EXPECT_LE(static_cast<int64_t>(lists[w].size()),
              problem.workers[w].max_experts);
  }
}

TEST(PlaceReplicasTest, OneReplicaOfAlikeExpertsIsTheEvenPlacement) {
  ASSERT_OK_AND_ASSIGN(const ExpertLists lists,
                       PlaceReplicas(Problem(8, 3, 1)));
  EXPECT_EQ(lists, Place(8, 3));
}

TEST(PlaceReplicasTest, MoreReplicasThanWorkersIsAllOfThem) {
  ASSERT_OK_AND_ASSIGN(const ExpertLists lists,
                       PlaceReplicas(Problem(3, 2, 4)));
  EXPECT_THAT(lists, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(0, 1, 2)));
}

// At least 3 other workers share the load of a worker that leaves.
TEST(PlaceReplicasTest, ReplicasOfAWorkersExpertsAreSpread) {
  ASSERT_OK_AND_ASSIGN(const ExpertLists lists,
                       PlaceReplicas(Problem(32, 8, 2)));
  std::set<size_t> partners;
  for (const int32_t expert : lists[0]) {
    for (size_t w = 1; w < lists.size(); ++w) {
      if (std::count(lists[w].begin(), lists[w].end(), expert) > 0) {
        partners.insert(w);
      }
    }
  }
  EXPECT_GE(partners.size(), 3u);
}

TEST(PlaceReplicasTest, HotExpertsGetMoreReplicas) {
  ReplicaProblem problem = Problem(16, 8, 2);
  problem.load.assign(16, 1.0);
  problem.load[5] = 40.0;
  ASSERT_OK_AND_ASSIGN(const ExpertLists lists, PlaceReplicas(problem));
  const std::vector<int32_t> counts = CountsOf(problem, lists);
  EXPECT_EQ(counts[5], 8);
  EXPECT_EQ(counts[4], 2);
  // An even share of 55 rows is 6.9 a worker.
  EXPECT_LT(PlacementCost(problem, lists), 8.0);
  problem.load.clear();
  EXPECT_EQ(WantedReplicas(problem), std::vector<int32_t>(16, 2));
}

TEST(PlaceReplicasTest, FewExpertsOnManyWorkersAreNotHot) {
  EXPECT_EQ(WantedReplicas(Problem(4, 16, 1)), std::vector<int32_t>(4, 1));
}

TEST(PlaceReplicasTest, FasterWorkersGetMore) {
  ReplicaProblem problem = Problem(40, 2, 1);
  problem.workers[1].rows_per_second = 3.0;
  ASSERT_OK_AND_ASSIGN(const ExpertLists lists, PlaceReplicas(problem));
  EXPECT_EQ(lists[0].size(), 10u);
  EXPECT_EQ(lists[1].size(), 30u);
}

TEST(PlaceReplicasTest, SaysWhatDoesNotFit) {
  ReplicaProblem problem = Problem(4, 2, 2);
  problem.workers[1].max_experts = 3;
  EXPECT_THAT(PlaceReplicas(problem),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("2 replicas of 4 experts")));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(PlaceReplicas(Problem(2049, 1, 1)),
              StatusIs(kInvalid, HasSubstr("got 2049")));
  EXPECT_THAT(PlaceReplicas(Problem(1, 0, 1)),
              StatusIs(kInvalid, HasSubstr("workers, got 0")));
  EXPECT_THAT(PlaceReplicas(Problem(1, 1, 17)),
              StatusIs(kInvalid, HasSubstr("1 to 16 replicas, got 17")));
  problem.load = {1, 2};
  EXPECT_THAT(PlaceReplicas(problem), StatusIs(kInvalid, HasSubstr("got 2")));
  problem.load = {1, 2, -1, 0};
  EXPECT_THAT(PlaceReplicas(problem), StatusIs(kInvalid, HasSubstr("got -1")));
  problem.load.clear();
  problem.workers[0].rows_per_second = 0.0;
  EXPECT_THAT(PlaceReplicas(problem), StatusIs(kInvalid, HasSubstr("speed")));
}

TEST(PlaceReplicasTest, IsSoundCompleteAndBalancedForAnyProblem) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const ReplicaProblem problem = RandomProblem(seed);
    const auto lists = PlaceReplicas(problem);
    if (!lists.ok()) {
      EXPECT_THAT(lists,
                  StatusIs(absl::StatusCode::kResourceExhausted, ::testing::_));
      continue;
    }
    ExpectSound(problem, *lists);
    const int32_t least = std::min<int32_t>(
        problem.replicas, static_cast<int32_t>(problem.workers.size()));
    for (const int32_t count : CountsOf(problem, *lists)) {
      EXPECT_GE(count, least);
    }
    const bool bounded = std::any_of(
        problem.workers.begin(), problem.workers.end(),
        [](const auto& worker) { return worker.max_experts < 1000; });
    if (bounded || problem.workers.size() <= size_t{1} + problem.replicas) {
      continue;
    }
    // List scheduling: at most an even share plus one replica, or plus two
    // where replicas of an expert must be on different workers.
    double rows = problem.num_experts, speed = 0.0, largest = 1.0;
    double slowest = 1e9;
    if (!problem.load.empty()) {
      rows = std::accumulate(problem.load.begin(), problem.load.end(), 0.0);
      largest = *std::max_element(problem.load.begin(), problem.load.end());
    }
    for (const auto& worker : problem.workers) {
      speed += worker.rows_per_second;
      slowest = std::min(slowest, worker.rows_per_second);
    }
    EXPECT_LE(PlacementCost(problem, *lists),
              rows / speed + 2.0 * largest / least / slowest + 1e-9);
  }
}

TEST(RepairReplicasTest, AddsWhatIsMissingAndTouchesNothingElse) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const ReplicaProblem problem = RandomProblem(seed);
    const auto whole = PlaceReplicas(problem);
    if (!whole.ok()) continue;
    ExpertLists damaged = *whole;
    damaged[RandomBelow(seed, 999, damaged.size())].clear();
    const ExpertLists repaired = RepairReplicas(problem, damaged);
    ExpectSound(problem, repaired);
    for (size_t w = 0; w < damaged.size(); ++w) {
      EXPECT_TRUE(std::includes(repaired[w].begin(), repaired[w].end(),
                                damaged[w].begin(), damaged[w].end()));
    }
    // PlaceReplicas found room for every expert, so RepairReplicas does, too.
    for (const int32_t count : CountsOf(problem, repaired)) {
      EXPECT_GE(count, 1);
    }
    EXPECT_EQ(RepairReplicas(problem, repaired), repaired);
  }
}

TEST(RepairReplicasTest, ExpertsWithoutAnyReplicaComeFirst) {
  ReplicaProblem problem = Problem(4, 2, 2);
  problem.load = {1, 100, 1, 1};
  problem.workers[0].max_experts = 2;
  problem.workers[1].max_experts = 3;
  EXPECT_THAT(RepairReplicas(problem, {{0, 1}, {2}})[1], ElementsAre(1, 2, 3));
  // The only free place is on worker 1: expert 3, which has no replica,
  // precedes the hot expert 1.
  problem.workers[1].max_experts = 2;
  EXPECT_THAT(RepairReplicas(problem, {{0, 1}, {2}})[1], ElementsAre(2, 3));
}

TEST(ImproveReplicasTest, FillsAWorkerThatJoins) {
  ReplicaProblem problem = Problem(12, 3, 1);
  ASSERT_OK_AND_ASSIGN(ExpertLists lists, PlaceReplicas(problem));
  problem.workers.emplace_back();
  lists.emplace_back();
  const ExpertLists improved = ImproveReplicas(problem, lists, {});
  ExpectSound(problem, improved);
  EXPECT_EQ(improved[3].size(), 3u);
  // Only the replicas that the new worker needs move.
  EXPECT_EQ(CountMoves(lists, improved), 3);
  EXPECT_EQ(CountsOf(problem, improved), std::vector<int32_t>(12, 1));
}

TEST(ImproveReplicasTest, MovesNothingForALittle) {
  ReplicaProblem problem = Problem(40, 2, 1);
  ASSERT_OK_AND_ASSIGN(const ExpertLists lists, PlaceReplicas(problem));
  problem.load.assign(40, 10.0);
  for (int e = 0; e < 20; ++e) problem.load[e] = 11.5;  // 7 % above the mean
  EXPECT_EQ(ImproveReplicas(problem, lists, {.min_gain = 0.1}), lists);
  EXPECT_NE(ImproveReplicas(problem, lists, {.min_gain = 0.02}), lists);
  // Nothing moves if the gain does not pay for the loading.
  EXPECT_EQ(
      ImproveReplicas(
          problem, lists,
          {.min_gain = 0.02, .horizon_seconds = 10.0, .seconds_per_move = 1.0}),
      lists);
}

TEST(ImproveReplicasTest, ALoadThatSwingsAddsAndKeepsButDoesNotThrash) {
  ReplicaProblem problem = Problem(16, 4, 1);
  ASSERT_OK_AND_ASSIGN(ExpertLists lists, PlaceReplicas(problem));
  int changes = 0;
  for (int round = 0; round < 20; ++round) {
    problem.load.assign(16, 1.0);
    // Swings around the threshold for a second replica.
    problem.load[3] = round % 2 == 0 ? 2.3 : 1.9;
    const ExpertLists next = ImproveReplicas(problem, lists, {});
    changes += next != lists;
    lists = next;
  }
  EXPECT_LE(changes, 1);
}

TEST(ImproveReplicasTest, DropsWhatACoolExpertHasTooManyOf) {
  ReplicaProblem problem = Problem(3, 3, 1);
  const ExpertLists lists = {{0}, {0, 1}, {0, 2}};
  // Expert 0 is too cool to gain these replicas, but too hot to lose them.
  problem.load = {1.5, 1.0, 1.0};
  EXPECT_EQ(WantedReplicas(problem), (std::vector<int32_t>{1, 1, 1}));
  EXPECT_EQ(ImproveReplicas(problem, lists, {}), lists);
  problem.load = {1.0, 1.0, 1.0};
  EXPECT_EQ(ImproveReplicas(problem, lists, {}), (ExpertLists{{0}, {1}, {2}}));
  // Without known loads, surplus replicas are dropped as well.
  problem.load.clear();
  EXPECT_EQ(ImproveReplicas(problem, lists, {}), (ExpertLists{{0}, {1}, {2}}));
}

TEST(ImproveReplicasTest, IsSoundBoundedAndSettlesForAnyProblem) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    ReplicaProblem problem = RandomProblem(seed);
    auto placed = PlaceReplicas(problem);
    if (!placed.ok()) continue;
    // The load changes completely after the placement.
    ExpertLists lists = *placed;
    problem.load.clear();
    for (int32_t e = 0; e < problem.num_experts; ++e) {
      problem.load.push_back(RandomUniform(seed, 5000 + e) * 50.0);
    }
    const ImproveOptions options{.max_moves = 3};
    int rounds = 0;
    while (true) {
      const ExpertLists next = ImproveReplicas(problem, lists, options);
      if (next == lists) break;
      ExpectSound(problem, next);
      EXPECT_LE(CountMoves(lists, next), options.max_moves);
      if (CountMoves(lists, next) > 0) {
        EXPECT_LE(PlacementCost(problem, next),
                  PlacementCost(problem, lists) * 0.9 + 1e-9);
      }
      const std::vector<int32_t> before = CountsOf(problem, lists);
      const std::vector<int32_t> after = CountsOf(problem, next);
      for (int32_t e = 0; e < problem.num_experts; ++e) {
        EXPECT_GE(after[e], std::min({before[e], problem.replicas}));
      }
      lists = next;
      ASSERT_LT(++rounds, 100);
    }
  }
}

// RandomProblem() with its workers on random nodes.
ReplicaProblem RandomNodes(uint64_t seed) {
  ReplicaProblem problem = RandomProblem(seed);
  const uint64_t nodes = 1 + RandomBelow(seed, 700, problem.workers.size());
  for (size_t w = 0; w < problem.workers.size(); ++w) {
    problem.workers[w].failure_domain =
        absl::StrCat("n", RandomBelow(seed, 800 + w, nodes));
  }
  return problem;
}

// Whether all experts could have problem.replicas on distinct nodes: the
// maximum flow from experts, through their nodes, to workers with room.
bool CanBeApart(const ReplicaProblem& problem) {
  std::map<std::string, std::map<std::string, int32_t>> room;  // residual
  for (size_t w = 0; w < problem.workers.size(); ++w) {
    const std::string worker = absl::StrCat("w", w);
    room[worker]["sink"] = problem.workers[w].max_experts;
    for (int32_t e = 0; e < problem.num_experts; ++e) {
      const std::string expert = absl::StrCat("e", e);
      const std::string on_node =
          absl::StrCat(expert, problem.workers[w].failure_domain);
      room["source"][expert] = problem.replicas;
      room[expert][on_node] = 1;
      room[on_node][worker] = 1;
    }
  }
  int32_t flow = 0;
  std::set<std::string> seen;
  const std::function<bool(const std::string&)> push =
      [&](const std::string& from) {
        if (from == "sink") return true;
        if (!seen.insert(from).second) return false;
        for (auto& [to, left] : room[from]) {
          if (left == 0 || !push(to)) continue;
          --left;
          ++room[to][from];
          return true;
        }
        return false;
      };
  for (; push("source"); seen.clear()) ++flow;
  return flow == problem.replicas * problem.num_experts;
}

// The number of experts whose replicas must share nodes, given room everywhere:
// all or none.
int32_t LeastSharing(const ReplicaProblem& problem) {
  std::set<std::string> nodes;
  for (const auto& worker : problem.workers) {
    nodes.insert(worker.failure_domain);
  }
  const int64_t replicas =
      std::min<int64_t>(problem.replicas, std::ssize(problem.workers));
  return std::ssize(nodes) >= replicas ? 0 : problem.num_experts;
}

bool IsRoomy(const ReplicaProblem& problem) {
  return std::all_of(
      problem.workers.begin(), problem.workers.end(),
      [&](const auto& w) { return w.max_experts >= problem.num_experts; });
}

TEST(ReplicaDomainsTest, ReplicasShareNoneIfThatCanBe) {
  int tight = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const ReplicaProblem problem = RandomNodes(seed);
    const auto lists = PlaceReplicas(problem);
    if (!lists.ok()) {
      // There is no room without failure domains either.
      ReplicaProblem anywhere = problem;
      for (auto& worker : anywhere.workers) worker.failure_domain.clear();
      EXPECT_FALSE(PlaceReplicas(anywhere).ok());
      continue;
    }
    ExpectSound(problem, *lists);
    if (IsRoomy(problem)) {
      EXPECT_EQ(CountSharing(problem, *lists), LeastSharing(problem));
    } else if (CanBeApart(problem)) {
      EXPECT_EQ(CountSharing(problem, *lists), 0);
      ++tight;
    }
  }
  EXPECT_GT(tight, 50);
}

TEST(ReplicaDomainsTest, WhatSharesOneMovesAndAllSettles) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    ReplicaProblem problem = RandomNodes(seed);
    const std::vector<ReplicaProblem::Worker> named = problem.workers;
    // Workers get their domains only after the placement.
    for (auto& worker : problem.workers) worker.failure_domain.clear();
    auto placed = PlaceReplicas(problem);
    if (!placed.ok()) continue;
    problem.workers = named;
    ExpertLists lists = *placed;
    const ImproveOptions options{.max_moves = 8};
    for (int rounds = 0; rounds < 100; ++rounds) {
      const ExpertLists next = ImproveReplicas(problem, lists, options);
      if (next == lists) break;
      ExpectSound(problem, next);
      EXPECT_LE(CountMoves(lists, next), options.max_moves);
      EXPECT_LE(CountSharing(problem, next), CountSharing(problem, lists));
      lists = next;
      ASSERT_LT(rounds, 99);
    }
    if (IsRoomy(problem)) {
      EXPECT_EQ(CountSharing(problem, lists), LeastSharing(problem));
    }
  }
}

TEST(ReplicaDomainsTest, ALostWorkersReplicasGoToOtherDomains) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const ReplicaProblem problem = RandomNodes(seed);
    if (!IsRoomy(problem)) continue;
    ExpertLists lists = *PlaceReplicas(problem);
    lists[RandomBelow(seed, 999, lists.size())].clear();
    lists = RepairReplicas(problem, lists);
    EXPECT_EQ(CountSharing(problem, ImproveReplicas(problem, lists, {})),
              LeastSharing(problem));
  }
}

TEST(ReplicaDomainsTest, TheWidestLevelComesFirst) {
  ReplicaProblem problem = Problem(6, 4, 2);
  problem.workers[0].failure_domain = "a/1";
  problem.workers[1].failure_domain = "a/2";
  problem.workers[2].failure_domain = "a/3";
  problem.workers[3].failure_domain = "b/1";
  ASSERT_OK_AND_ASSIGN(ExpertLists lists, PlaceReplicas(problem));
  EXPECT_THAT(lists[3], ElementsAre(0, 1, 2, 3, 4, 5));
  // Zone b is lost; replicas are then on different nodes of zone a.
  problem.workers.pop_back();
  lists.pop_back();
  lists = RepairReplicas(problem, lists);
  EXPECT_EQ(CountsOf(problem, lists), std::vector<int32_t>(6, 2));
  EXPECT_EQ(CountSharing(problem, lists), 0);
}

TEST(ReplicaDomainsTest, ABadDomainIsAnError) {
  ReplicaProblem problem = Problem(2, 2, 1);
  problem.workers[1].failure_domain = "a b";
  EXPECT_THAT(PlaceReplicas(problem),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a b")));
}

}  // namespace
}  // namespace gshard
