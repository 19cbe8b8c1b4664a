#include "services/ops/exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gshard {
namespace {

TEST(ExpTest, WithinTwoUlpOfTheLibrary) {
  double worst = 0.0;
  for (int i = 0; i <= 200000; ++i) {
    const float x = -87.0f + 175.0f * static_cast<float>(i) / 200000.0f;
    const double expected = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(Exp(x) - expected) / expected);
  }
  EXPECT_LT(worst, 2.4e-7);
}

TEST(ExpTest, Ends) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-100.0f), 0.0f);
  EXPECT_EQ(Exp(-infinity), 0.0f);
  EXPECT_GT(Exp(infinity), 2e38f);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace gshard
