#include "services/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

namespace gshard {
namespace {

// The published generator, seeded with 0, yields these values first; its state
// advances by the golden ratio.
TEST(RandomTest, MixerIsThePublishedSplitMix64) {
  const uint64_t golden = 0x9E3779B97F4A7C15ull;
  EXPECT_EQ(SplitMix64(0 * golden), 0xE220A8397B1DCDAFull);
  EXPECT_EQ(SplitMix64(1 * golden), 0x6E789E6AA1B965F4ull);
  EXPECT_EQ(SplitMix64(2 * golden), 0x06C45D188009454Full);
}

// Checkpoints and replayed steps rely on these bits: a change here changes
// every training run.
TEST(RandomTest, BitsStayWhatTheyAre) {
  const uint64_t key = FoldIn(FoldIn(7, 3), "encoder/0/gate");
  EXPECT_EQ(FoldIn(7, 3),
            SplitMix64(7 ^ SplitMix64(3 + 0x632BE59BD9B4E019ull)));
  EXPECT_EQ(RandomBits(key, 5), SplitMix64(SplitMix64(key) + 5));
  EXPECT_EQ(RandomUniform(key, 5),
            static_cast<float>(RandomBits(key, 5) >> 40) / 16777216.0f);
}

TEST(RandomTest, KeysDifferByEveryPartAndByOrder) {
  std::set<uint64_t> keys;
  for (uint64_t a = 0; a < 20; ++a) {
    for (uint64_t b = 0; b < 20; ++b) {
      keys.insert(FoldIn(FoldIn(1, a), b));
      keys.insert(FoldIn(FoldIn(2, a), b));
    }
  }
  EXPECT_EQ(keys.size(), 800u);
}

TEST(RandomTest, NamesWithTheSameLettersOrPrefixGiveDifferentKeys) {
  EXPECT_NE(FoldIn(1, "ab"), FoldIn(1, "ba"));
  EXPECT_NE(FoldIn(1, "a"), FoldIn(1, "aa"));
  EXPECT_NE(FoldIn(1, ""), uint64_t{1});
  EXPECT_NE(FoldIn(FoldIn(1, "ab"), "c"), FoldIn(FoldIn(1, "a"), "bc"));
  EXPECT_EQ(FoldIn(1, "ab"), FoldIn(1, "ab"));
}

TEST(RandomTest, UniformIsInRangeAndEvenlySpread) {
  constexpr int kDraws = 100000;
  int buckets[16] = {};
  for (int i = 0; i < kDraws; ++i) {
    const float u = RandomUniform(/*key=*/11, i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++buckets[static_cast<int>(u * 16)];
  }
  // Each count is 6250 with a standard deviation of 77.
  for (const int count : buckets) EXPECT_NEAR(count, kDraws / 16, 400);
}

TEST(RandomTest, NeighbouringIndicesAreUncorrelated) {
  constexpr int kDraws = 100000;
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    sum += (RandomUniform(3, i) - 0.5) * (RandomUniform(3, i + 1) - 0.5);
  }
  EXPECT_NEAR(sum / kDraws * 12, 0.0, 0.02);
}

TEST(RandomTest, BelowCoversItsRangeAndNothingElse) {
  for (const uint64_t n : {1, 2, 3, 10}) {
    std::set<uint64_t> seen;
    for (int i = 0; i < 1000; ++i) seen.insert(RandomBelow(5, i, n));
    EXPECT_EQ(seen.size(), n);
    EXPECT_EQ(*seen.rbegin(), n - 1);
  }
  EXPECT_LT(RandomBelow(5, 0, UINT64_MAX), UINT64_MAX);
}

TEST(RandomTest, NormalHasTheMomentsOfTheStandardNormal) {
  constexpr int kDraws = 100000;
  double sum = 0, square = 0, fourth = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = RandomNormal(/*key=*/13, i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.02);
  EXPECT_NEAR(square / kDraws, 1.0, 0.03);
  EXPECT_NEAR(fourth / kDraws, 3.0, 0.2);
}

}  // namespace
}  // namespace gshard
