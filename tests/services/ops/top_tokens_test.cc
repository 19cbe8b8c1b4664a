#include "services/ops/top_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "services/base/random.h"

namespace gshard {
namespace {

std::vector<int32_t> Tokens(const std::vector<TokenScore>& scores) {
  std::vector<int32_t> tokens;
  for (const TokenScore& score : scores) tokens.push_back(score.token);
  return tokens;
}

TEST(TopTokensTest, ComeBestFirstAndTiesByToken) {
  const std::vector<float> logits = {1, 3, 2, 3, 0};
  EXPECT_THAT(Tokens(TopTokens(logits, {.count = 3})),
              ::testing::ElementsAre(1, 3, 2));
}

TEST(TopTokensTest, LeaveOutForbiddenTokensButCountThemInTheSum) {
  const std::vector<float> logits = {0, 0, 0, 0};
  const std::vector<TokenScore> top =
      TopTokens(logits, {.count = 4, .never = {1, 2}});
  EXPECT_THAT(Tokens(top), ::testing::ElementsAre(0, 3));
  EXPECT_NEAR(top[0].log_probability, std::log(0.25), 1e-6);
}

TEST(TopTokensTest, OfARowWithNanAreNone) {
  std::vector<float> logits(40, std::nanf(""));
  EXPECT_TRUE(TopTokens(logits, {.count = 2}).empty());
  for (const size_t v : {0, 17, 39}) {
    logits.assign(40, 1.0f);
    logits[v] = std::nanf("");
    EXPECT_TRUE(TopTokens(logits, {.count = 2}).empty()) << v;
  }
  logits.assign(40, -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(TopTokens(logits, {.count = 2}).empty());
  logits[3] = 0.0f;  // one number is enough
  EXPECT_EQ(TopTokens(logits, {.count = 1}).size(), 1u);
}

TEST(TopTokensTest, EqualSortingTheWholeRow) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    // Large rows, where most logits are visited only once.
    const int64_t V = 1 + RandomBelow(seed, 0, seed < 50 ? 200 : 20000);
    std::vector<float> logits;
    double sum = 0.0;
    for (int64_t v = 0; v < V; ++v) {
      logits.push_back(8.0f * RandomUniform(seed, v + 1));
      sum += std::exp(static_cast<double>(logits.back()));
    }
    std::vector<int32_t> order;
    for (int64_t v = 0; v < V; ++v) order.push_back(v);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[a] > logits[b];
    });
    // All tokens, and all without the best three.
    for (const size_t never : {0, 3}) {
      if (order.size() <= never) continue;
      const auto allowed = order.begin() + static_cast<int64_t>(never);
      const std::vector<TokenScore> top =
          TopTokens(logits, {.count = 5, .never = {order.data(), never}});
      ASSERT_EQ(top.size(), std::min<size_t>(5, V - never));
      for (size_t i = 0; i < top.size(); ++i) {
        EXPECT_EQ(top[i].token, allowed[i]);
        EXPECT_NEAR(top[i].log_probability, logits[allowed[i]] - std::log(sum),
                    1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace gshard
