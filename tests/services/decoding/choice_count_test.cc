#include "services/decoding/choice_count.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace gshard {
namespace {

// Two sentences of two tokens each, a padding token, and 4 experts.
std::vector<ChoiceCount> Count(
    const std::vector<std::pair<std::string, Tensor>>& outputs) {
  Program program;
  std::vector<Tensor> values;
  for (const auto& [name, value] : outputs) {
    program.outputs.emplace_back(name, ValueId());
    values.push_back(value);
  }
  std::vector<ChoiceCount> sentences(2);
  AddChoices(program, values, {0, 0, 1, 1, -1}, absl::MakeSpan(sentences));
  return sentences;
}

const Tensor kKept = Tensor::Ints({4}, {4, 2, 1, 1});
const Tensor kLost = Tensor::Ints({5}, {0, 1, 0, 0, 2});

TEST(ChoiceCountTest, CountsWhatIsMadeAndLost) {
  const auto sentences = Count({{"kept/a", kKept}, {"lost/a", kLost}});
  for (const ChoiceCount& sentence : sentences) EXPECT_EQ(sentence.made, 4);
  EXPECT_EQ(sentences[0].lost, 1);
  EXPECT_EQ(sentences[0].lost_share(), 0.25);
  EXPECT_EQ(sentences[1].lost, 0);
}

TEST(ChoiceCountTest, AChoiceCostsAsItsExpertIsLoaded) {
  // The first sentence chooses experts 0 and 1, the second 0, 2 and 3.
  const auto sentences = Count(
      {{"kept/a", kKept},
       {"expert/a", Tensor::Ints({5, 2}, {0, 1, 0, 1, 0, 2, 0, 3, 3, 3})}});
  // Loads are 4, 2, 1, 1: a choice costs 8 / 22 of its expert's load.
  EXPECT_DOUBLE_EQ(sentences[0].mean_cost(), (4 + 2 + 4 + 2) * 8.0 / 22 / 4);
  EXPECT_DOUBLE_EQ(sentences[1].mean_cost(), (4 + 1 + 4 + 1) * 8.0 / 22 / 4);
  EXPECT_DOUBLE_EQ(sentences[0].cost + sentences[1].cost, 8);
}

TEST(ChoiceCountTest, AllCostTheSameWhereNobodySaysWhere) {
  EXPECT_EQ(ChoiceCount().mean_cost(), 1);
  for (const ChoiceCount& sentence : Count({{"kept/a", kKept}})) {
    EXPECT_EQ(sentence.mean_cost(), 1);
  }
  // Choices without an available expert (-1) cost the same, too.
  for (const ChoiceCount& sentence :
       Count({{"kept/a", kKept},
              {"expert/a",
               Tensor::Ints({5, 2}, std::vector<int32_t>(10, -1))}})) {
    EXPECT_EQ(sentence.mean_cost(), 1);
  }
}

}  // namespace
}  // namespace gshard
