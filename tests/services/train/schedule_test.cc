#include "services/train/schedule.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

TEST(ScheduleTest, PapersIsConstantThenFallsAsTheRoot) {
  const Schedule schedule({}, /*steps=*/2000000);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(1), 0.01);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(10000), 0.01);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(40000), 0.005);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(1000000), 0.001);
}

TEST(ScheduleTest, LinearWarmupRisesToTheSamePeak) {
  const Schedule schedule(
      {.multiplier = 2.0, .warmup_steps = 100, .linear_warmup = true},
      /*steps=*/1000);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(1), 0.002);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(50), 0.1);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(100), 0.2);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(400), 0.1);
}

TEST(ScheduleTest, NoWarmup) {
  for (const bool linear : {false, true}) {
    const Schedule schedule({.warmup_steps = 1, .linear_warmup = linear},
                            /*steps=*/10);
    EXPECT_DOUBLE_EQ(schedule.LearningRate(1), 1.0);
    EXPECT_DOUBLE_EQ(schedule.LearningRate(4), 0.5);
  }
}

TEST(ScheduleTest, CooldownFallsInAStraightLineToTheLastStep) {
  LearningRateSchedule config = {.multiplier = 2.0,
                                 .warmup_steps = 100,
                                 .linear_warmup = true,
                                 .cooldown_steps = 3};
  const Schedule schedule(config, /*steps=*/400);
  config.cooldown_steps = 0;
  const Schedule without(config, /*steps=*/400);
  for (const int64_t step : {1, 100, 397, 401}) {
    EXPECT_DOUBLE_EQ(schedule.LearningRate(step), without.LearningRate(step));
  }
  for (const int64_t step : {398, 399, 400}) {
    EXPECT_DOUBLE_EQ(schedule.LearningRate(step),
                     without.LearningRate(step) * (401 - step) / 4.0);
  }
}

}  // namespace
}  // namespace gshard
