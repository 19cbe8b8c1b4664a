#include "services/coordinator/microbatch_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

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
  MicrobatchSchedule schedule(7);
  EXPECT_THAT(schedule.Assign(), IsEmpty());  // no routers
  schedule.AddRouter(kA);
  schedule.AddRouter(kB);
  EXPECT_THAT(schedule.Assign(),
              ElementsAre(Assignment{kA, 0, 0}, Assignment{kB, 1, 0},
                          Assignment{kA, 2, 0}, Assignment{kB, 3, 0}));
  schedule.Finish({kB, 1, 0});
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kB, 4, 0}));
  // Two are left for two routers: they go to whoever is idle.
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
  MicrobatchSchedule schedule(3);
  schedule.AddRouter(kA);
  schedule.AddRouter(kB);
  EXPECT_THAT(schedule.Assign(),
              ElementsAre(Assignment{kA, 0, 0}, Assignment{kB, 1, 0}));
  schedule.RemoveRouter(kB);
  schedule.RemoveRouter(kB);  // nothing more to do
  EXPECT_EQ(schedule.num_routers(), 1u);
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
  EXPECT_FALSE(schedule.IsCurrent({kA, 3, 0}));  // there is none
}

TEST(MicrobatchScheduleTest, AFailedMicrobatchWaitsForItsRelease) {
  MicrobatchSchedule schedule(1);
  schedule.AddRouter(kA);
  ASSERT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, 0, 0}));
  EXPECT_EQ(schedule.Fail({kA, 0, 0}), 1);
  EXPECT_THAT(schedule.Assign(), IsEmpty());
  schedule.Release(0);
  EXPECT_THAT(schedule.Assign(), ElementsAre(Assignment{kA, 0, 1}));
  EXPECT_EQ(schedule.Fail({kA, 0, 1}), 2);
}

}  // namespace
}  // namespace gshard
