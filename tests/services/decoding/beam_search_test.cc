#include "services/decoding/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <vector>

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
      std::vector<TokenScore>& next =
          candidates.emplace_back(NextTokens(seed, prefix));
      if (std::ssize(next) > search.candidates_wanted()) {
        next.resize(search.candidates_wanted());
      }
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

// What is drawn with these options in `draws` calls of as many hypotheses.
std::map<std::vector<int32_t>, int> Drawn(const DecodeOptions& options,
                                          uint64_t draws) {
  std::map<std::vector<int32_t>, int> counts;
  DecodeOptions drawn = options;
  for (drawn.sampling->seed = 0; drawn.sampling->seed < draws;
       ++drawn.sampling->seed) {
    for (const DecodedHypothesis& one : Search(drawn, 3, /*seed=*/5)) {
      std::vector<int32_t> tokens = one.ids;
      if (!one.truncated) tokens.push_back(kEos);
      ++counts[tokens];
    }
  }
  return counts;
}

TEST(BeamSearchTest, TranslationsAreDrawnWithTheirProbabilities) {
  for (const double temperature : {1.0, 0.5, 3.0}) {
    for (const int top_k : {2, 64}) {
      constexpr int kSeeds = 4000, kHypotheses = 5;
      const std::map<std::vector<int32_t>, int> counts = Drawn(
          {.beam_size = kHypotheses,
           .n_best = kHypotheses,
           .sampling = Sampling{.top_k = top_k, .temperature = temperature}},
          kSeeds);
      // The chain rule over what the temperature makes of the best tokens.
      double sum = 0;
      const std::function<void(std::vector<int32_t>, double)> expect =
          [&](const std::vector<int32_t>& prefix, double probability) {
            std::vector<TokenScore> next = NextTokens(5, prefix);
            next.resize(std::min<size_t>(next.size(), top_k));
            double total = 0;
            for (const TokenScore& one : next) {
              total += std::exp(one.log_probability / temperature);
            }
            for (const TokenScore& one : next) {
              std::vector<int32_t> tokens = prefix;
              tokens.push_back(one.token);
              const double its = probability *
                                 std::exp(one.log_probability / temperature) /
                                 total;
              if (one.token != kEos && tokens.size() < 3) {
                expect(tokens, its);
                continue;
              }
              sum += its;
              const double draws = kSeeds * kHypotheses;
              const auto found = counts.find(tokens);
              const int count = found == counts.end() ? 0 : found->second;
              // Five standard deviations.
              EXPECT_NEAR(count, draws * its,
                          5 * std::sqrt(draws * its * (1 - its)) + 1);
            }
          };
      expect({}, 1.0);
      EXPECT_NEAR(sum, 1.0, 1e-9);
    }
  }
}

TEST(BeamSearchTest, DrawsAreTheirOwn) {
  DecodeOptions options{.beam_size = 8,
                        .length_penalty = 0,
                        .n_best = 8,
                        .sampling = Sampling{.top_k = 3, .seed = 11}};
  const std::vector<DecodedHypothesis> eight = Search(options, 8, 5);
  ASSERT_EQ(eight.size(), 8u);
  // Fewer of them are some of the same, also if others end before them.
  options.beam_size = options.n_best = 1;
  const std::vector<DecodedHypothesis> one = Search(options, 8, 5);
  const auto same = std::find_if(
      eight.begin(), eight.end(),
      [&](const DecodedHypothesis& of) { return of.ids == one[0].ids; });
  ASSERT_NE(same, eight.end());
  // The score is the model's, whatever the temperature.
  EXPECT_EQ(same->score, one[0].score);
  double log_probability = 0;
  std::vector<int32_t> prefix, tokens = one[0].ids;
  if (!one[0].truncated) tokens.push_back(kEos);
  for (const int32_t token : tokens) {
    for (const TokenScore& next : NextTokens(5, prefix)) {
      if (next.token == token) log_probability += next.log_probability;
    }
    prefix.push_back(token);
  }
  EXPECT_NEAR(one[0].score, log_probability, 1e-6);
  // From one token there is no choice.
  options.sampling->top_k = 1;
  EXPECT_EQ(Search(options, 8, 5)[0].ids,
            Search({.beam_size = 1}, 8, 5)[0].ids);
  // A prefix is not drawn.
  options.sampling->top_k = 3;
  options.prefix = {2, 2};
  const std::vector<int32_t> ids = Search(options, 8, 5)[0].ids;
  EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + 2), options.prefix);
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
