#include "services/rpc/server/look_schedule.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

using std::chrono::milliseconds;
using Clock = LookSchedule::Clock;

constexpr Clock::time_point kNever = Clock::time_point::max();

class LookScheduleTest : public ::testing::Test {
 protected:
  // Sweeps until no sweep is due any more.
  void Rest() {
    while (schedule_.Next({}, now_) != kNever) {
      now_ = schedule_.Next({}, now_);
      ASSERT_TRUE(schedule_.TakeSweep(now_));
      ++sweeps_;
    }
  }

  LookSchedule schedule_;
  Clock::time_point now_ = Clock::time_point(std::chrono::hours(1));
  int sweeps_ = 0;
};

TEST_F(LookScheduleTest, SweepsAWhileAfterNewsAndThenSleeps) {
  Rest();
  EXPECT_EQ(sweeps_, 8);
  schedule_.OnNews();
  Rest();
  EXPECT_EQ(sweeps_, 16);
  EXPECT_FALSE(schedule_.TakeSweep(now_));
}

TEST_F(LookScheduleTest, SweepsForAsLongAsCallsAreOpen) {
  Rest();
  for (int i = 0; i < 20; ++i) {
    const Clock::time_point next = schedule_.Next({.calls = true}, now_);
    ASSERT_EQ(next, now_ + milliseconds(250));
    now_ = next;
    ASSERT_TRUE(schedule_.TakeSweep(now_));
  }
}

TEST_F(LookScheduleTest, LooksOftenerWhileMuchIsHeld) {
  Rest();
  ASSERT_TRUE(schedule_.TakeLook(now_));
  EXPECT_FALSE(schedule_.TakeLook(now_ + milliseconds(3)));
  EXPECT_EQ(schedule_.Next({.active = true}, now_), now_ + milliseconds(4));
  schedule_.SetBusy(true);
  now_ += milliseconds(4);
  ASSERT_TRUE(schedule_.TakeLook(now_));
  EXPECT_EQ(schedule_.Next({.active = true}, now_), now_ + milliseconds(1));
}

TEST_F(LookScheduleTest, NewcomersAreAskedForEvery10Milliseconds) {
  Rest();
  EXPECT_EQ(schedule_.Next({.newcomers = true}, now_), now_ + milliseconds(10));
}

TEST_F(LookScheduleTest, TrimsAWhileAfterTheLastShutdown) {
  Rest();
  EXPECT_FALSE(schedule_.TakeTrim(now_));
  schedule_.OnShutdown(now_);
  now_ += milliseconds(50);
  // Another shutdown does not delay the first trim.
  schedule_.OnShutdown(now_);
  EXPECT_EQ(schedule_.Next({}, now_), now_ + milliseconds(50));
  int trims = 0;
  while (schedule_.Next({}, now_) != kNever) {
    now_ = schedule_.Next({}, now_);
    ASSERT_TRUE(schedule_.TakeTrim(now_));
    ++trims;
  }
  EXPECT_EQ(trims, 4);
}

}  // namespace
}  // namespace gshard
