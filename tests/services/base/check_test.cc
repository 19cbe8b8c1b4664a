#include "services/base/check.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

TEST(CheckTest, TrueConditionIsEvaluatedOnceAndPasses) {
  int evaluations = 0;
  CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
}

TEST(CheckDeathTest, FalseConditionEndsTheProcessNamingItAndItsPlace) {
  EXPECT_DEATH(CHECK(1 + 1 == 3), "check_test.cc:.*CHECK failed: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace gshard
