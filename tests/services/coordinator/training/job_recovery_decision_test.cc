// The decisions of a recovering job, tested without a job.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/coordinator/preparation/job_checkpoint.h"
#include "services/coordinator/training/job_recovery.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(JobRecoveryDecisionTest, ABudgetIsOfRecoveriesWithoutAStepFurther) {
  RecoveryBudget budget(2);
  const absl::Status cause = absl::UnavailableError("lost");
  EXPECT_OK(budget.RecordLoss(0, cause));
  EXPECT_OK(budget.RecordLoss(0, cause));
  EXPECT_OK(budget.RecordLoss(3, cause));  // further than before
  EXPECT_OK(budget.RecordLoss(2, cause));  // no further
  EXPECT_THAT(budget.RecordLoss(3, cause),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("gave up after 2 recoveries without a step "
                                 "further: lost")));
}

TEST(JobRecoveryDecisionTest, RetriesWaitTwiceAsLongEachTime) {
  const absl::Duration delay = absl::Milliseconds(50);
  EXPECT_EQ(RetryDelay(delay, 1), delay);
  EXPECT_EQ(RetryDelay(delay, 2), 2 * delay);
  EXPECT_EQ(RetryDelay(delay, 8), 128 * delay);
  EXPECT_EQ(RetryDelay(delay, 1000), 128 * delay);
}

TEST(JobRecoveryDecisionTest, RollsBackToTheLastMultiple) {
  TrainingJob job;
  job.checkpoint.every_steps = 4;
  for (const auto& [step, skipped] :
       {std::pair(1, 1), std::pair(4, 4), std::pair(5, 1), std::pair(8, 4)}) {
    EXPECT_EQ(RollbackBase(job, step - 1), step - skipped);
  }
}

TEST(JobRecoveryDecisionTest, BuddiesAreLeftUnlessTwoInARowAreLost) {
  EXPECT_TRUE(BuddiesAreLeft({}, 4));
  EXPECT_TRUE(BuddiesAreLeft({1}, 4));
  EXPECT_TRUE(BuddiesAreLeft({1, 3}, 4));
  EXPECT_FALSE(BuddiesAreLeft({1, 2}, 4));
  EXPECT_FALSE(BuddiesAreLeft({0, 3}, 4));
  EXPECT_FALSE(BuddiesAreLeft({0}, 1));  // its own buddy
}

}  // namespace
}  // namespace gshard
