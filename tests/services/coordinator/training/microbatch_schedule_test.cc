#include "services/coordinator/training/microbatch_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "services/base/random.h"
#include "services/train/ordered_sum.h"

namespace gshard {

void PrintTo(const Assignment& assignment, std::ostream* out) {
  *out << assignment.router.name << ":" << assignment.microbatch << "/"
       << assignment.attempt;
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const MemberKey kA{"a", 1};
const MemberKey kB{"b", 2};

TEST(MicrobatchScheduleTest, QueuesOneAheadWhileManyWait) {
  MicrobatchSchedule schedule(7, 7);
  EXPECT_THAT(schedule.Assign(), IsEmpty());  // no routers
  schedule.SetRouters({kA, kB});
  EXPECT_THAT(schedule.Assign(),
              ElementsAre(Assignment{kA, 0, 0}, Assignment{kB, 1, 0},
                          Assignment{kA, 2, 0}, Assignment{kB, 3, 0}));
  schedule.Finish({kB, 1, 0});
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kB, 4, 0}));
  // The last two microbatches for two routers go to idle ones only.
  schedule.Finish({kB, 3, 0});
  EXPECT_THAT(schedule.Assign(), IsEmpty());
  schedule.Finish({kB, 4, 0});
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kB, 5, 0}));
  schedule.Finish({kA, 0, 0});
  schedule.Finish({kA, 2, 0});
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, 6, 0}));
  EXPECT_FALSE(schedule.complete());
  schedule.Finish({kA, 6, 0});
  schedule.Finish({kB, 5, 0});
  EXPECT_TRUE(schedule.complete());
  EXPECT_THAT(schedule.attempts(), ElementsAre(0, 0, 0, 0, 0, 0, 0));
}

TEST(MicrobatchScheduleTest, ALostRoutersMicrobatchesRunAgain) {
  MicrobatchSchedule schedule(3, 3);
  schedule.SetRouters({kA, kB});
  EXPECT_THAT(schedule.Assign(),
              ElementsAre(Assignment{kA, 0, 0}, Assignment{kB, 1, 0}));
  schedule.SetRouters({kA});
  schedule.SetRouters({kA});  // no change
  EXPECT_FALSE(schedule.IsCurrent({kB, 1, 0}));
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, 1, 1}));
  EXPECT_TRUE(schedule.IsCurrent({kA, 1, 1}));
  EXPECT_FALSE(schedule.IsCurrent({kA, 1, 0}));
  schedule.Finish({kA, 0, 0});
  schedule.Finish({kA, 1, 1});
  EXPECT_FALSE(schedule.IsCurrent({kA, 1, 1}));  // finished
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, 2, 0}));
  schedule.Finish({kA, 2, 0});
  EXPECT_TRUE(schedule.complete());
  EXPECT_THAT(schedule.attempts(), ElementsAre(0, 1, 0));
  EXPECT_FALSE(schedule.IsCurrent({kA, 3, 0}));  // no such microbatch
}

TEST(MicrobatchScheduleTest, AFailedMicrobatchWaitsForItsRelease) {
  MicrobatchSchedule schedule(1, 1);
  schedule.SetRouters({kA});
  ASSERT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, 0, 0}));
  EXPECT_EQ(schedule.Failed({kA, 0, 0}), 1);
  EXPECT_THAT(schedule.Assign(), IsEmpty());
  schedule.Release(0);
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, 0, 1}));
  EXPECT_EQ(schedule.Failed({kA, 0, 1}), 2);
}

TEST(MicrobatchScheduleTest, TheWindowFollowsTheRoutersThatAreThere) {
  MicrobatchSchedule schedule(9, 9);
  schedule.SetRouters({kA});
  EXPECT_THAT(schedule.Assign(),
              ElementsAre(Assignment{kA, 0, 0}, Assignment{kA, 1, 0}));
  for (const int32_t next : {2, 3}) {
    schedule.Finish({kA, next - 1, 0});
    EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, next, 0}));
  }
  schedule.Finish({kA, 3, 0});
  EXPECT_THAT(schedule.Assign(), IsEmpty());  // 0 is missing
  schedule.SetRouters({kA, kB});
  EXPECT_THAT(schedule.Assign(),
              ElementsAre(Assignment{kB, 4, 0}, Assignment{kA, 5, 0},
                          Assignment{kB, 6, 0}));
  for (const int32_t index : {4, 6}) schedule.Finish({kB, index, 0});
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kB, 7, 0}));
  schedule.Finish({kB, 7, 0});
  EXPECT_THAT(schedule.Assign(), IsEmpty());
}

TEST(MicrobatchScheduleTest, RunsAheadOfTheOldestMissingOneByAWindow) {
  MicrobatchSchedule schedule(6, 3);
  schedule.SetRouters({kA, kB});
  EXPECT_THAT(schedule.Assign(),
              ElementsAre(Assignment{kA, 0, 0}, Assignment{kB, 1, 0},
                          Assignment{kA, 2, 0}));
  schedule.Finish({kB, 1, 0});
  schedule.Finish({kA, 2, 0});
  EXPECT_EQ(schedule.oldest(), 0);
  EXPECT_THAT(schedule.Assign(), IsEmpty());  // 0 is missing
  EXPECT_EQ(schedule.Failed({kA, 0, 0}), 1);
  EXPECT_THAT(schedule.Assign(), IsEmpty());
  schedule.Release(0);
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, 0, 1}));
  schedule.Finish({kA, 0, 1});
  EXPECT_EQ(schedule.oldest(), 3);
  EXPECT_THAT(schedule.Assign(),
              ElementsAre(Assignment{kA, 3, 0}, Assignment{kB, 4, 0}));
}

// Runs a step in virtual time, with all the sums of its gradients.
class RandomStep {
 public:
  explicit RandomStep(uint64_t seed)
      : seed_(seed),
        count_(Between(1, 40)),
        window_(Between(1, count_)),
        schedule_(count_, window_) {
    for (int i = 0; i < 3; ++i) sums_.emplace_back(count_, window_ - 1);
    const int routers = Between(1, 5);
    for (int r = 0; r < routers; ++r) Join();
  }

  // Returns when no event is left.
  void Run() {
    Dispatch();
    while (!events_.empty()) {
      const auto next = events_.begin();
      now_ = next->first;
      const std::function<void()> happen = std::move(next->second);
      events_.erase(next);
      happen();
      Dispatch();
    }
  }

  void ExpectComplete() {
    EXPECT_TRUE(schedule_.complete());
    EXPECT_EQ(schedule_.oldest(), count_);
    for (OrderedSum& sum : sums_) EXPECT_TRUE(sum.complete());
  }

 private:
  int Between(int low, int high) {
    return low + static_cast<int>(RandomBelow(seed_, draws_++, high - low + 1));
  }
  bool OneIn(int n) { return Between(1, n) == 1; }
  void After(int time, std::function<void()> happen) {
    events_.emplace(now_ + time, std::move(happen));
  }
  void Join() {
    routers_.push_back({"r", ++last_router_});
    schedule_.SetRouters(routers_);
  }

  void Dispatch() {
    for (const Assignment& assignment : schedule_.Assign()) {
      EXPECT_LT(assignment.microbatch, schedule_.oldest() + window_);
      After(Between(1, 100), [this, assignment] { OnRun(assignment); });
    }
  }

  // The router has run the microbatch, failed part-way, or is lost.
  void OnRun(const Assignment& assignment) {
    if (OneIn(6)) {
      std::erase(routers_, assignment.router);
      schedule_.SetRouters(routers_);
      After(Between(0, 200), [this] { Join(); });
    }
    // Late gradients of an attempt that was handed on are added as well.
    const bool fails = OneIn(4);
    for (OrderedSum& sum : sums_) {
      if (fails && OneIn(2)) continue;  // not every sum got them
      const absl::Status added =
          sum.Add(assignment.microbatch, {Tensor::Scalar(1)});
      EXPECT_TRUE(added.ok() || absl::IsAlreadyExists(added)) << added;
    }
    if (!schedule_.IsCurrent(assignment)) return;
    if (!fails) return schedule_.Finish(assignment);
    schedule_.Failed(assignment);
    After(Between(0, 300),
          [this, index = assignment.microbatch] { schedule_.Release(index); });
  }

  const uint64_t seed_;
  uint64_t draws_ = 0;
  const int count_;
  const int window_;
  MicrobatchSchedule schedule_;
  std::deque<OrderedSum> sums_;  // the coordinator's, and workers'
  std::vector<MemberKey> routers_;
  int64_t last_router_ = 0;
  int now_ = 0;
  std::multimap<int, std::function<void()>> events_;
};

TEST(MicrobatchScheduleTest, NobodyIsEverStuckAndNoSumEverFull) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    RandomStep step(seed);
    step.Run();
    step.ExpectComplete();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace gshard
