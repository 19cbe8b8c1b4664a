#include "services/base/log_budget.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

using std::chrono::milliseconds;

TEST(LogBudgetTest, LeavesOutWhatIsTooMuchAndCountsIt) {
  const std::chrono::steady_clock::time_point start{std::chrono::hours(1)};
  LogBudget budget(2);
  EXPECT_EQ(budget.Take(start), 0);
  EXPECT_EQ(budget.Take(start + milliseconds(500)), 0);
  EXPECT_EQ(budget.Take(start + milliseconds(600)), std::nullopt);
  EXPECT_EQ(budget.Take(start + milliseconds(999)), std::nullopt);
  EXPECT_EQ(budget.Take(start + milliseconds(1000)), 2);
  EXPECT_EQ(budget.Take(start + milliseconds(1001)), 0);
  EXPECT_EQ(budget.Take(start + milliseconds(1002)), std::nullopt);
}

}  // namespace
}  // namespace gshard
