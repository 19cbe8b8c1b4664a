#include "services/train/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleTest, PapersIsConstantThenFallsAsTheRoot) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Schedule::Create({}));
  EXPECT_DOUBLE_EQ(schedule.LearningRate(1), 0.01);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(10000), 0.01);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(40000), 0.005);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(1000000), 0.001);
}

TEST(ScheduleTest, LinearWarmupRisesToTheSamePeak) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       Schedule::Create({.warmup = WarmupShape::kLinear,
                                         .multiplier = 2.0,
                                         .warmup_steps = 100}));
  EXPECT_DOUBLE_EQ(schedule.LearningRate(1), 0.002);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(50), 0.1);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(100), 0.2);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(400), 0.1);
}

TEST(ScheduleTest, NoWarmup) {
  for (const WarmupShape shape :
       {WarmupShape::kConstant, WarmupShape::kLinear}) {
    for (const int64_t steps : {0, 1}) {
      ASSERT_OK_AND_ASSIGN(
          const Schedule schedule,
          Schedule::Create({.warmup = shape, .warmup_steps = steps}));
      EXPECT_DOUBLE_EQ(schedule.LearningRate(1), 1.0);
      EXPECT_DOUBLE_EQ(schedule.LearningRate(4), 0.5);
    }
  }
}

TEST(ScheduleTest, CooldownFallsInAStraightLineToTheLastStep) {
  const ScheduleOptions options = {.warmup = WarmupShape::kLinear,
                                   .multiplier = 2.0,
                                   .warmup_steps = 100,
                                   .cooldown_steps = 3,
                                   .steps = 400};
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Schedule::Create(options));
  ScheduleOptions steady = options;
  steady.cooldown_steps = 0;
  ASSERT_OK_AND_ASSIGN(const Schedule without, Schedule::Create(steady));
  for (const int64_t step : {1, 100, 397, 401}) {
    EXPECT_DOUBLE_EQ(schedule.LearningRate(step), without.LearningRate(step));
  }
  for (const int64_t step : {398, 399, 400}) {
    EXPECT_DOUBLE_EQ(schedule.LearningRate(step),
                     without.LearningRate(step) * (401 - step) / 4.0);
  }
}

TEST(ScheduleTest, RefusesOptionsOutOfRange) {
  for (const double multiplier :
       {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(Schedule::Create({.multiplier = multiplier}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("multiplier must be > 0")));
  }
  for (const int64_t steps : {int64_t{-1}, int64_t{1000000001}}) {
    EXPECT_THAT(Schedule::Create({.warmup_steps = steps}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("warmup_steps must be in [0, 1000000000]")));
  }
  for (const int64_t cooldown : {-1, 11}) {
    EXPECT_THAT(
        Schedule::Create({.cooldown_steps = cooldown, .steps = 10}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("cooldown_steps must be in [0, 10], the steps")));
  }
}

}  // namespace
}  // namespace gshard
