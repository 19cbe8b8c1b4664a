#include "services/train/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gshard {
namespace {

TEST(ProgressTest, LinesOfAJobLineUp) {
  const std::string early = FormatProgress({.step = 1,
                                            .total_steps = 2000,
                                            .loss = 10.1234,
                                            .balance_loss = 1.5,
                                            .overflow_share = 0.1234,
                                            .tokens_per_second = 987.4,
                                            .eta_seconds = {}});
  const std::string late = FormatProgress({.step = 1999,
                                           .total_steps = 2000,
                                           .loss = 1.98766,
                                           .balance_loss = 1.00449,
                                           .overflow_share = 0.0,
                                           .tokens_per_second = 12345.6,
                                           .eta_seconds = 3.2});
  EXPECT_EQ(early,
            "step    1/2000  loss 10.1234  balance  1.500  overflow  12.3%  "
            "      987 tok/s  ETA --:--:--");
  EXPECT_EQ(late,
            "step 1999/2000  loss  1.9877  balance  1.004  overflow   0.0%  "
            "   12,346 tok/s  ETA 00:00:04");
}

TEST(ProgressTest, TellsOfValuesThatAreNotFinite) {
  const std::string line = FormatProgress(
      {.step = 1,
       .total_steps = 2,
       .loss = std::nan(""),
       .tokens_per_second = std::numeric_limits<double>::infinity(),
       .eta_seconds = std::numeric_limits<double>::infinity()});
  EXPECT_NE(line.find("nan"), std::string::npos) << line;
  EXPECT_NE(line.find("inf tok/s"), std::string::npos) << line;
}

TEST(ProgressTest, ThousandsAreSetApart) {
  const auto rate = [](double value) {
    const std::string line =
        FormatProgress({.tokens_per_second = value, .eta_seconds = {}});
    const size_t end = line.find(" tok/s");
    const size_t begin = line.rfind(' ', end - 1) + 1;
    return line.substr(begin, end - begin);
  };
  EXPECT_EQ(rate(0), "0");
  EXPECT_EQ(rate(999), "999");
  EXPECT_EQ(rate(1000), "1,000");
  EXPECT_EQ(rate(123456), "123,456");
  EXPECT_EQ(rate(1234567), "1,234,567");
}

TEST(FormatDurationTest, RoundsUpToSeconds) {
  EXPECT_EQ(FormatDuration(0), "00:00:00");
  EXPECT_EQ(FormatDuration(-5), "00:00:00");
  EXPECT_EQ(FormatDuration(59.01), "00:01:00");
  EXPECT_EQ(FormatDuration(3661), "01:01:01");
  EXPECT_EQ(FormatDuration(86399), "23:59:59");
  EXPECT_EQ(FormatDuration(3 * 86400 + 4 * 3600 + 5 * 60 + 6), "3d 04:05:06");
  EXPECT_EQ(FormatDuration(std::nan("")), "99999d 00:00:00");
}

TEST(SmoothedRateTest, IsUnknownUntilObserved) {
  SmoothedRate rate(10.0);
  EXPECT_FALSE(rate.rate().has_value());
  EXPECT_FALSE(rate.TimeFor(100).has_value());
  rate.Observe(5.0, 0.0);
  EXPECT_FALSE(rate.rate().has_value());
  rate.Observe(0.0, 1.0);
  EXPECT_EQ(rate.rate(), 0.0);
  EXPECT_FALSE(rate.TimeFor(100).has_value());
}

TEST(SmoothedRateTest, IsExactWhenConstant) {
  SmoothedRate rate(10.0);
  for (int i = 0; i < 20; ++i) rate.Observe(3.0 * (1 + i % 4), 1 + i % 4);
  EXPECT_DOUBLE_EQ(*rate.rate(), 3.0);
  EXPECT_DOUBLE_EQ(*rate.TimeFor(30), 10.0);
}

// After one half-life at a new rate, half of the weight is the new rate's.
TEST(SmoothedRateTest, FollowsChanges) {
  SmoothedRate rate(10.0);
  for (int i = 0; i < 100000; ++i) rate.Observe(0.01, 0.01);
  for (int i = 0; i < 1000; ++i) rate.Observe(0.05, 0.01);
  EXPECT_NEAR(*rate.rate(), 3.0, 0.01);
}

}  // namespace
}  // namespace gshard
