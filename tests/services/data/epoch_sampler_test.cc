#include "services/data/epoch_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/reference/dataset.h"
#include "tests/services/data/sample_text.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;

// The given numbers of pairs by file and language.
class FakeText final : public TokenizedText {
 public:
  struct Pairs {
    int32_t file, language, count;
  };
  explicit FakeText(const std::vector<Pairs>& pairs) {
    for (const Pairs& p : pairs) {
      for (int32_t i = 0; i < p.count; ++i) pairs_.push_back(p);
    }
  }
  int32_t size() const override { return static_cast<int32_t>(pairs_.size()); }
  PairLengths lengths(int32_t) const override { return {5, 5}; }
  int32_t language(int32_t i) const override { return pairs_[i].language; }
  int32_t file(int32_t i) const override { return pairs_[i].file; }
  const std::vector<std::string>& languages() const override { return none_; }
  absl::StatusOr<std::vector<PieceIds>> Read(
      absl::Span<const int32_t>) const override {
    return absl::UnimplementedError("");
  }
  const TextReport& report() const override { return report_; }
  int32_t pad_id() const override { return 0; }
  int32_t target_pad_id() const override { return 0; }
  int32_t bos_id() const override { return 0; }

 private:
  std::vector<Pairs> pairs_;
  std::vector<std::string> none_;
  TextReport report_;
};

std::vector<TextFile> Files(const std::vector<double>& weights) {
  std::vector<TextFile> files;
  for (const double weight : weights) {
    files.push_back({.path = "x", .language = "", .weight = weight});
  }
  return files;
}

EpochSampler Sampler(const FakeText& text, const std::vector<double>& weights,
                     double temperature, uint64_t seed = 1) {
  return *EpochSampler::Create(text, Files(weights), temperature, seed);
}

std::map<int32_t, int64_t> CountByPair(const std::vector<int32_t>& drawn) {
  std::map<int32_t, int64_t> counts;
  for (const int32_t i : drawn) ++counts[i];
  return counts;
}

TEST(EpochSamplerTest, EveryPairOnceWithoutTemperature) {
  const FakeText text({{0, 0, 1000}, {1, 1, 10}, {1, 0, 3}});
  for (const double weight : {1.0, 0.25}) {
    const EpochSampler sampler = Sampler(text, {weight, weight}, 1.0);
    std::vector<int32_t> all(1013);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sampler.Draw(0), all);
    EXPECT_EQ(sampler.Draw(5), all);
  }
}

// Computed by hand: 10000^(1/2) = 100, 100^(1/2) = 10, 1^(1/2) = 1; N = 10101.
TEST(EpochSamplerTest, CountsFollowTheFormula) {
  const std::vector<SamplingCell> cells = {
      {0, 1.0, 10000}, {1, 1.0, 100}, {2, 1.0, 1}};
  EXPECT_THAT(EpochCounts(cells, 2.0), ElementsAre(9100, 910, 91));
  EXPECT_THAT(EpochCounts(cells, 1.0), ElementsAre(10000, 100, 1));
  // Nearly uniform over languages: a third of 10101 each, within the factor
  // 10000^(1/1000) between the largest and the smallest.
  const double factor = std::pow(10000, 0.001);
  for (const int64_t count : EpochCounts(cells, 1000.0)) {
    EXPECT_GT(count, 3367 / factor - 0.5);
    EXPECT_LT(count, 3367 * factor + 0.5);
  }
}

// A file of weight 3 counts as three; the weights of a language's files divide
// its share.
TEST(EpochSamplerTest, WeightsMultiplyPairs) {
  // n_0 = 3 * 100 + 100 = 400, n_1 = 400: half of 600 each.
  EXPECT_THAT(EpochCounts({{0, 3.0, 100}, {0, 1.0, 100}, {1, 1.0, 400}}, 1.0),
              ElementsAre(225, 75, 300));
  EXPECT_THAT(EpochCounts({{0, 3.0, 100}, {0, 1.0, 100}, {1, 1.0, 400}}, 5.0),
              ElementsAre(225, 75, 300));
  // A tiny share still gives one pair.
  EXPECT_THAT(EpochCounts({{0, 1e-6, 10}, {0, 1.0, 100}}, 1.0),
              ElementsAre(1, 110));
}

// An epoch has exactly the counts. Over several epochs, draws of a cell's pairs
// differ by at most one, since pairs come in passes.
TEST(EpochSamplerTest, EpochsHaveExactlyTheCounts) {
  const std::vector<int32_t> sizes = {10000, 1000, 37};
  const FakeText text({{0, 0, 10000}, {0, 1, 1000}, {0, 2, 37}});
  const std::vector<int64_t> counts =
      EpochCounts({{0, 1.0, 10000}, {1, 1.0, 1000}, {2, 1.0, 37}}, 5.0);
  const double roots =
      std::pow(10000, 0.2) + std::pow(1000, 0.2) + std::pow(37, 0.2);
  for (int l = 0; l < 3; ++l) {
    // Only rounding may differ.
    EXPECT_NEAR(counts[l], 11037 * std::pow(sizes[l], 0.2) / roots, 0.5);
  }
  const EpochSampler sampler = Sampler(text, {1.0}, 5.0);
  std::map<int32_t, int64_t> so_far;
  constexpr int kEpochs = 4;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    std::vector<int64_t> by_language(3);
    for (const int32_t i : sampler.Draw(epoch)) {
      ++by_language[text.language(i)];
      ++so_far[i];
    }
    EXPECT_EQ(by_language, counts);
  }
  for (int32_t i = 0; i < text.size(); ++i) {
    const int32_t l = text.language(i);
    const int64_t least = kEpochs * counts[l] / sizes[l];
    EXPECT_GE(so_far[i], least) << i;
    EXPECT_LE(so_far[i], least + 1) << i;
  }
}

// If an epoch draws k of n pairs, the first epoch has each pair for a share p =
// k / n of all seeds, within 6 standard deviations of the binomial. Over 400
// pairs, this fails with a probability below 10^-6.
TEST(EpochSamplerTest, EveryPairHasItsShare) {
  const FakeText text({{0, 0, 400}, {0, 1, 20}});
  std::map<int32_t, int64_t> drawn_by;
  int64_t count = 0;
  constexpr int kSeeds = 1000;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    count = 0;
    for (const auto& [pair, times] :
         CountByPair(Sampler(text, {1.0}, 2.0, seed).Draw(0))) {
      if (text.language(pair) != 0) continue;
      EXPECT_EQ(times, 1);
      ++count;
      ++drawn_by[pair];
    }
  }
  const double p = static_cast<double>(count) / 400;
  ASSERT_LT(p, 0.9);
  const double deviation = std::sqrt(kSeeds * p * (1 - p));
  for (int32_t pair = 0; pair < 400; ++pair) {
    EXPECT_NEAR(drawn_by[pair], kSeeds * p, 6 * deviation) << pair;
  }
}

TEST(EpochSamplerTest, IsAFunctionOfSeedAndEpoch) {
  const FakeText text({{0, 0, 400}, {1, 1, 100}});
  const EpochSampler a = Sampler(text, {1.0, 2.0}, 5.0);
  const EpochSampler b = Sampler(text, {1.0, 2.0}, 5.0);
  const EpochSampler other = Sampler(text, {1.0, 2.0}, 5.0, /*seed=*/2);
  const std::vector<int32_t> third = a.Draw(2);
  EXPECT_EQ(b.Draw(2), third);
  EXPECT_NE(a.Draw(1), third);
  EXPECT_NE(other.Draw(2), third);
  EXPECT_EQ(a.Draw(2), third);
}

}  // namespace
}  // namespace gshard
