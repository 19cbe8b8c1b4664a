#include "expert_worker/step_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kAborted = absl::StatusCode::kAborted;

GradientList Of(const std::string& parameter, float value) {
  return {{parameter, Tensor::Floats({1}, {value})}};
}

// Whoever abandons a microbatch does not wait for a segment of it that runs.
TEST(StepGradientsTest, WhatComesOfAnAbandonedAttemptIsPassing) {
  StepGradients step({"a", "b"}, /*count=*/1, /*max_early=*/0);
  for (const bool last : {false, true}) {
    const int32_t attempt = last ? 1 : 0;
    ASSERT_OK(step.Enter(0, attempt));
    ASSERT_OK(step.Add(0, attempt, Of("a", 1), /*last=*/false));
    EXPECT_TRUE(step.Abandon(0, attempt));
    EXPECT_THAT(step.Add(0, attempt, Of("b", 2), last),
                StatusIs(kAborted, HasSubstr("has made way")));
    EXPECT_THAT(step.Enter(0, attempt),
                StatusIs(kAborted, HasSubstr("has made way")));
  }
  ASSERT_OK(step.Enter(0, 2));
  ASSERT_OK(step.Add(0, 2, Of("a", 3), /*last=*/false));
  ASSERT_OK(step.Add(0, 2, Of("b", 4), /*last=*/true));
  EXPECT_TRUE(step.Abandon(0, 1));  // which the last one has superseded
  // It is in the sum already.
  EXPECT_FALSE(step.Abandon(0, 2));
  ASSERT_OK(step.Enter(0, 2));
  ASSERT_OK_AND_ASSIGN(const GradientList sums, step.Take({2}));
  EXPECT_EQ(sums[0].second.data<float>()[0], 3);
  EXPECT_EQ(sums[1].second.data<float>()[0], 4);
}

}  // namespace
}  // namespace gshard
