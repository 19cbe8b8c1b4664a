// Tests search with required prefixes and phrases against brute force.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "services/base/random.h"
#include "services/decoding/beam_banks.h"
#include "services/decoding/beam_search.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Tokens = std::vector<int32_t>;

constexpr int32_t kEos = 0, kVocabulary = 5;

// Logits of a language that depend on all tokens so far.
std::vector<float> Logits(uint64_t seed, const Tokens& tokens) {
  uint64_t key = seed;
  for (const int32_t token : tokens) key = FoldIn(key, token);
  std::vector<float> logits;
  for (int t = 0; t < kVocabulary; ++t) {
    logits.push_back(3.0f * RandomUniform(key, t));
  }
  return logits;
}

std::vector<DecodedHypothesis> Search(const DecodeOptions& options,
                                      int max_length, uint64_t seed) {
  BeamSearch search(options, max_length, kEos);
  std::vector<Tokens> live = {{}};
  while (!search.done()) {
    std::vector<std::vector<TokenScore>> candidates;
    for (size_t i = 0; i < live.size(); ++i) {
      candidates.push_back(
          TopTokens(Logits(seed, live[i]), {.count = search.candidates_wanted(),
                                            .also = search.tokens_wanted(i)}));
    }
    search.Advance(candidates);
    std::vector<Tokens> next;
    for (int i = 0; i < search.num_live(); ++i) {
      next.push_back(live[search.parent(i)]);
      next.back().push_back(search.last_token(i));
    }
    live = std::move(next);
  }
  return search.Results();
}

bool Contains(const Tokens& tokens, const Tokens& phrase) {
  return std::search(tokens.begin(), tokens.end(), phrase.begin(),
                     phrase.end()) != tokens.end();
}

// The best score of an ended sentence of at most `length` tokens that meets
// `options`, by brute force.
double BestOfAll(const DecodeOptions& options, int length, uint64_t seed,
                 Tokens& tokens, double log_probability) {
  double best = -1e9;
  for (const TokenScore& next :
       TopTokens(Logits(seed, tokens), {.count = kVocabulary})) {
    const double total = log_probability + next.log_probability;
    const auto count = static_cast<int>(tokens.size()) + 1;
    if (next.token == kEos) {
      const bool begins = tokens.size() >= options.prefix.size() &&
                          std::equal(options.prefix.begin(),
                                     options.prefix.end(), tokens.begin());
      const bool has = std::all_of(
          options.phrases.begin(), options.phrases.end(),
          [&](const Tokens& phrase) { return Contains(tokens, phrase); });
      if (begins && has) {
        best = std::max(best, total / std::pow((5.0 + count) / 6.0,
                                               options.length_penalty));
      }
    } else if (count < length) {
      tokens.push_back(next.token);
      best = std::max(best, BestOfAll(options, length, seed, tokens, total));
      tokens.pop_back();
    }
  }
  return best;
}

TEST(ConstrainedSearchTest, AWideBeamFindsTheBestSentenceThatHasIt) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    DecodeOptions options{
        .beam_size = 6000, .length_penalty = 0.8, .n_best = 6000};
    // Every second seed has a prefix, every third no phrase or two that begin
    // alike.
    if (seed % 2 == 0) options.prefix = {static_cast<int32_t>(1 + seed % 4)};
    if (seed % 3 > 0) options.phrases = {{3, 1}};
    if (seed % 3 > 1) options.phrases.push_back({3, 2});
    double found = -1e9;
    for (const DecodedHypothesis& result : Search(options, 6, seed)) {
      if (!result.truncated) found = std::max(found, result.score);
    }
    Tokens tokens;
    EXPECT_NEAR(found, BestOfAll(options, 6, seed, tokens, 0.0), 1e-5);
  }
}

TEST(ConstrainedSearchTest, EveryHypothesisHasWhatItMust) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const auto below = [&](uint64_t counter, int64_t n) {
      return static_cast<int>(RandomBelow(FoldIn(9, seed), counter, n));
    };
    DecodeOptions options{.beam_size = 1 + below(0, 5)};
    options.n_best = options.beam_size;
    int total = 0;
    for (int p = below(1, 4); p > 0; --p) {
      Tokens& phrase = options.phrases.emplace_back();
      for (int t = 1 + below(10 + p, 3); t > 0; --t) {
        phrase.push_back(1 + below(100 * p + t, 4));
      }
      total += static_cast<int>(phrase.size());
    }
    for (int t = below(2, 4); t > 0; --t) {
      options.prefix.push_back(1 + below(900 + t, 4));
    }
    total += static_cast<int>(options.prefix.size());
    const int max_length = total + 1 + below(3, 4);
    const std::vector<DecodedHypothesis> results =
        Search(options, max_length, seed);
    ASSERT_FALSE(results.empty());
    for (const DecodedHypothesis& result : results) {
      EXPECT_LE(result.token_count, max_length);
      EXPECT_EQ(result.phrases_met, static_cast<int>(options.phrases.size()));
      ASSERT_GE(result.ids.size(), options.prefix.size());
      EXPECT_TRUE(std::equal(options.prefix.begin(), options.prefix.end(),
                             result.ids.begin()));
      for (const Tokens& phrase : options.phrases) {
        EXPECT_TRUE(Contains(result.ids, phrase));
      }
    }
  }
}

TEST(ConstrainedSearchTest, AlternativesAreTheBestNextTokensGoneOnGreedily) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Tokens prefix = {2, 4};
    const std::vector<DecodedHypothesis> results = Search(
        {.beam_size = 3, .n_best = 3, .prefix = prefix, .alternatives = true},
        8, seed);
    ASSERT_EQ(results.size(), 3u);
    std::vector<Tokens> expected;
    for (const TokenScore& next :
         TopTokens(Logits(seed, prefix), {.count = kVocabulary})) {
      if (expected.size() == 3) break;
      Tokens tokens = prefix;
      for (int32_t token = next.token; token != kEos;) {
        tokens.push_back(token);
        if (tokens.size() == 8) break;
        token = TopTokens(Logits(seed, tokens), {.count = 1})[0].token;
      }
      expected.push_back(tokens);
    }
    for (const DecodedHypothesis& result : results) {
      EXPECT_THAT(expected, ::testing::Contains(result.ids));
    }
  }
}

TEST(PhraseConstraintsTest, FollowsPhrasesInAnyOrder) {
  const PhraseConstraints phrases({{1, 2}, {3}, {1, 4}});
  PhraseConstraints::State state;
  EXPECT_EQ(phrases.total(), 5);
  EXPECT_THAT(phrases.Wanted(state), UnorderedElementsAre(1, 3));
  const auto next = [&](int32_t token) {
    state = phrases.Next(state, token);
    return phrases.Progress(state);
  };
  EXPECT_EQ(next(7), 0);
  EXPECT_EQ(next(1), 1);
  EXPECT_THAT(phrases.Wanted(state), ElementsAre(2, 4));
  EXPECT_EQ(next(3), 1);  // breaks one, meets another
  EXPECT_EQ(phrases.PhrasesMet(state), 1);
  EXPECT_EQ(next(1), 2);
  EXPECT_EQ(next(1), 2);  // begins again
  EXPECT_EQ(next(2), 3);
  EXPECT_EQ(next(1), 4);
  EXPECT_EQ(next(4), 5);
  EXPECT_TRUE(phrases.Complete(state));
  EXPECT_THAT(phrases.Wanted(state), IsEmpty());
  EXPECT_EQ(next(1), 5);
}

TEST(PhraseConstraintsTest, FindsPhrasesThatBeginAlike) {
  // Numbers of phrases met after each token.
  const auto met = [](std::vector<Tokens> phrases, const Tokens& tokens) {
    const PhraseConstraints constraints(std::move(phrases));
    PhraseConstraints::State state;
    std::vector<int> counts;
    for (const int32_t token : tokens) {
      state = constraints.Next(state, token);
      counts.push_back(constraints.PhrasesMet(state));
    }
    return counts;
  };
  EXPECT_THAT(met({{19, 90}, {19, 95}}, {19, 95, 7, 19, 90}),
              ElementsAre(0, 1, 1, 1, 2));
  // One that begins another.
  EXPECT_THAT(met({{1, 2}, {1}}, {1, 9}), ElementsAre(0, 1));
  EXPECT_THAT(met({{1, 2}, {1}}, {1, 2, 1}), ElementsAre(0, 1, 2));
  EXPECT_THAT(met({{1, 2}, {1}}, {1, 1, 2}), ElementsAre(0, 1, 2));
  EXPECT_THAT(met({{1, 2, 3, 4}, {1, 2}, {3}}, {1, 2, 3, 9}),
              ElementsAre(0, 0, 0, 2));
  // One within another, and one that overlaps itself.
  EXPECT_THAT(met({{1, 2, 3, 4}, {2, 3}}, {1, 2, 3, 9}),
              ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(met({{5, 5, 7}}, {5, 5, 5, 7}), ElementsAre(0, 0, 0, 1));
  // Twice the same, for which the tokens must come twice.
  EXPECT_THAT(met({{6, 6}, {6, 6}}, {6, 6, 6, 6}), ElementsAre(0, 1, 1, 2));
}

TEST(BeamBanksTest, SharesEvenlyAndGivesAwayWhatIsLeft) {
  EXPECT_THAT(ShareBeam({0, 0, 0, 0, 1, 2}, 3, 3), ElementsAre(0, 4, 5));
  EXPECT_THAT(ShareBeam({0, 0, 0, 0, 2, 2}, 3, 4), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(ShareBeam({0, 0, 0, 0, 1, 1}, 3, 4), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(ShareBeam({0, 0, 1}, 2, 9), ElementsAre(0, 1, 2));
  // Fewer rows than banks: the most progress first.
  EXPECT_THAT(ShareBeam({0, 1, 1, 2}, 5, 2), ElementsAre(1, 3));
  EXPECT_THAT(ShareBeam({}, 2, 2), IsEmpty());
}

}  // namespace
}  // namespace gshard
