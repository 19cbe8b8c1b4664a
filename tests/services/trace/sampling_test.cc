#include "services/trace/sampling.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"

namespace gshard {
namespace {

std::string TraceId(uint64_t n) {
  return absl::StrCat(absl::Hex(RandomBits(1, n), absl::kZeroPad16),
                      absl::Hex(RandomBits(2, n), absl::kZeroPad16));
}

TEST(SamplingTest, TheShareIsThatOfTheRatio) {
  constexpr int kTraces = 20000;
  for (const double ratio : {0.0, 0.01, 0.3, 1.0}) {
    int sampled = 0;
    for (int i = 0; i < kTraces; ++i) sampled += IsSampled(TraceId(i), ratio);
    EXPECT_NEAR(sampled, ratio * kTraces, ratio == 0 || ratio == 1 ? 0 : 300)
        << ratio;
  }
}

TEST(SamplingTest, WhoHasMoreHasAllThatOthersHave) {
  for (int i = 0; i < 1000; ++i) {
    const std::string id = TraceId(i);
    EXPECT_EQ(IsSampled(id, 0.2), IsSampled(id, 0.2));
    EXPECT_LE(IsSampled(id, 0.2), IsSampled(id, 0.4)) << id;
  }
}

TEST(SamplingTest, TheRandomPartOfTheIdDecides) {
  const std::string low = "ffffffffffffffffff00000000000001";
  const std::string high = "000000000000000000ffffffffffffff";
  EXPECT_TRUE(IsSampled(low, 0.001));
  EXPECT_FALSE(IsSampled(high, 0.999));
  EXPECT_TRUE(IsSampled(high, 1));
  EXPECT_FALSE(IsSampled(low, 0));
  EXPECT_FALSE(IsSampled("", 1));
  EXPECT_FALSE(IsSampled(std::string(32, 'x'), 1));
}

}  // namespace
}  // namespace gshard
