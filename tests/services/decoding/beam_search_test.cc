#include "services/decoding/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "services/base/random.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kEos = 0;

// A language of three tokens, of which 0 ends a sentence, with probabilities
// that depend on all tokens so far.
std::vector<TokenScore> NextTokens(uint64_t seed,
                                   const std::vector<int32_t>& prefix) {
  uint64_t key = seed;
  for (const int32_t token : prefix) key = FoldIn(key, token);
  double weight[3], sum = 0.0;
  for (int t = 0; t < 3; ++t) {
    sum += weight[t] = 0.05 + RandomUniform(key, t);
  }
  std::vector<TokenScore> scores;
  for (int32_t t = 0; t < 3; ++t) {
    scores.push_back({t, static_cast<float>(std::log(weight[t] / sum))});
  }
  std::sort(scores.begin(), scores.end(), [](const auto& a, const auto& b) {
    return a.log_probability > b.log_probability;
  });
  return scores;
}

// Runs a search, following each hypothesis by parent().
std::vector<DecodedHypothesis> Search(const DecodeOptions& options,
                                      int max_length, uint64_t seed) {
  BeamSearch search(options, max_length, kEos);
  std::vector<std::vector<int32_t>> prefixes = {{}};
  while (!search.done()) {
    std::vector<std::vector<TokenScore>> candidates;
    for (const std::vector<int32_t>& prefix : prefixes) {
      candidates.push_back(NextTokens(seed, prefix));
    }
    search.Advance(candidates);
    std::vector<std::vector<int32_t>> next;
    for (int i = 0; i < search.num_live(); ++i) {
      next.push_back(prefixes[search.parent(i)]);
      next.back().push_back(search.last_token(i));
    }
    prefixes = std::move(next);
  }
  return search.Results();
}

// The best score of ended sentences of up to `length` tokens, by brute force.
void BestOfAll(uint64_t seed, double alpha, int length,
               std::vector<int32_t>& prefix, double log_probability,
               double& best) {
  for (const TokenScore& next : NextTokens(seed, prefix)) {
    const double total = log_probability + next.log_probability;
    const int count = static_cast<int>(prefix.size()) + 1;
    if (next.token == kEos) {
      best = std::max(best, total / std::pow((5.0 + count) / 6.0, alpha));
    } else if (count < length) {
      prefix.push_back(next.token);
      BestOfAll(seed, alpha, length, prefix, total, best);
      prefix.pop_back();
    }
  }
}

TEST(BeamSearchTest, BeamOfOneTakesTheBestTokenEachTime) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::vector<int32_t> greedy;
    bool ended = false;
    while (greedy.size() < 6 && !ended) {
      const int32_t token = NextTokens(seed, greedy)[0].token;
      ended = token == kEos;
      if (!ended) greedy.push_back(token);
    }
    const std::vector<DecodedHypothesis> results =
        Search({.beam_size = 1}, /*max_length=*/6, seed);
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].ids, greedy);
    EXPECT_EQ(results[0].truncated, !ended);
  }
}

// A beam as wide as the tree prunes nothing, so it finds the best sentence.
TEST(BeamSearchTest, WideBeamFindsTheBestSentence) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const DecodeOptions options = {
        .beam_size = 64, .length_penalty = 0.8, .n_best = 64};
    const std::vector<DecodedHypothesis> results =
        Search(options, /*max_length=*/5, seed);
    std::vector<int32_t> prefix;
    double best = -1e9;
    BestOfAll(seed, 0.8, 5, prefix, 0.0, best);
    double found = -1e9;
    for (const DecodedHypothesis& result : results) {
      if (!result.truncated) found = std::max(found, result.score);
    }
    EXPECT_NEAR(found, best, 1e-5);
  }
}

TEST(BeamSearchTest, ResultsComeBestFirstAndAreDistinct) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::vector<DecodedHypothesis> results =
        Search({.beam_size = 4, .n_best = 4}, /*max_length=*/8, seed);
    ASSERT_EQ(results.size(), 4u);
    for (size_t i = 1; i < results.size(); ++i) {
      EXPECT_GE(results[i - 1].score, results[i].score);
      for (size_t j = 0; j < i; ++j) EXPECT_NE(results[i].ids, results[j].ids);
    }
  }
}

TEST(BeamSearchTest, StopsAtTheMaximumLengthAndSaysSo) {
  BeamSearch search({.beam_size = 1, .length_penalty = 0.0}, 2, kEos);
  const std::vector<std::vector<TokenScore>> never_ends = {
      {{1, -0.5f}, {2, -1.0f}}};
  search.Advance(never_ends);
  EXPECT_FALSE(search.done());
  search.Advance(never_ends);
  ASSERT_TRUE(search.done());
  const std::vector<DecodedHypothesis> results = search.Results();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_THAT(results[0].ids, ElementsAre(1, 1));
  EXPECT_TRUE(results[0].truncated);
  EXPECT_EQ(results[0].token_count, 2);
  EXPECT_NEAR(results[0].score, -1.0, 1e-6);
}

TEST(BeamSearchTest, LengthPenaltyPrefersLongerSentences) {
  // EOS at once costs 1.0; token 1 and EOS cost 1.2 in total.
  const auto run = [](double alpha) {
    BeamSearch search({.beam_size = 2, .length_penalty = alpha}, 4, kEos);
    search.Advance(std::vector<std::vector<TokenScore>>{
        {{1, -0.9f}, {kEos, -1.0f}, {2, -9.0f}}});
    std::vector<std::vector<TokenScore>> ends(search.num_live(),
                                              {{kEos, -0.3f}, {1, -5.0f}});
    search.Advance(ends);
    return search.Results()[0].ids.size();
  };
  EXPECT_EQ(run(0.0), 0u);
  EXPECT_EQ(run(2.0), 1u);
}

}  // namespace
}  // namespace gshard
