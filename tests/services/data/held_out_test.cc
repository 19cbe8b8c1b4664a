#include "services/data/held_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/reference/dataset.h"
#include "tests/services/data/sample_text.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

Dataset Text() {
  const TextTokenizers tokenizers = SampleTokenizers();
  return *Dataset::Read(
      {{.path = "tests/data/names.tsv", .language = "", .weight = 1.0}},
      *tokenizers.source, *tokenizers.target, {});
}

std::vector<int32_t> All(const HeldOut& held_out) {
  std::vector<int32_t> all;
  for (int32_t i = 0; i < held_out.microbatches(); ++i) {
    const std::vector<int32_t>& some = held_out.Microbatch(i);
    all.insert(all.end(), some.begin(), some.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(HeldOutTest, HoldsEveryPairOnceWithinTheBudget) {
  const Dataset text = Text();
  ASSERT_OK_AND_ASSIGN(
      const HeldOut held_out,
      HeldOut::Create(text, {.seed = 1, .tokens = 200, .max_sentences = 0}));
  std::vector<int32_t> expected(text.size());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(All(held_out), expected);
  for (int32_t i = 0; i < held_out.microbatches(); ++i) {
    int32_t longest = 0;
    for (const int32_t s : held_out.Microbatch(i)) {
      longest = std::max(longest, text.lengths(s).longest);
    }
    EXPECT_LE(longest * held_out.Microbatch(i).size(), 200u);
  }
}

TEST(HeldOutTest, ChoosesASampleBySeed) {
  const Dataset text = Text();
  const auto sample = [&](uint64_t seed, int32_t count) {
    return All(*HeldOut::Create(
        text, {.seed = seed, .tokens = 200, .max_sentences = count}));
  };
  const std::vector<int32_t> some = sample(1, 40);
  EXPECT_EQ(some.size(), 40u);
  EXPECT_EQ(std::adjacent_find(some.begin(), some.end()), some.end());
  EXPECT_EQ(sample(1, 40), some);
  EXPECT_NE(sample(2, 40), some);
  // The sample comes from the whole text.
  EXPECT_GT(some.back(), text.size() / 2);
  EXPECT_EQ(sample(1, 1'000'000).size(), static_cast<size_t>(text.size()));
}

TEST(HeldOutTest, RefusesABudgetThatIsTooSmall) {
  EXPECT_THAT(
      HeldOut::Create(Text(), {.seed = 1, .tokens = 3, .max_sentences = 0}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               ::testing::HasSubstr("pieces")));
}

}  // namespace
}  // namespace gshard
