#include "services/moe/missing_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "services/base/random.h"
#include "services/moe/dispatch.h"
#include "services/moe/gating.h"
#include "tests/reference/missing_experts.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A gate's choices, and the rows of the experts that are lost.
struct Gated {
  Routing routing;
  DispatchPlan plan;
  std::vector<bool> lost_expert;
  std::vector<RowRange> lost_rows;
};

Gated MakeGated(uint64_t seed, bool drop) {
  const int64_t tokens = 1 + RandomBits(seed, 0) % 30;
  const int64_t experts = 1 + RandomBits(seed, 1) % 9;
  Gated gated;
  GatingOptions options;
  options.second_expert = SecondExpertPolicy::kAll;
  options.drop = drop;
  options.capacity_factor = 0.7;
  Tensor valid(ElementType::kInt32, {tokens});
  for (int64_t t = 0; t < tokens; ++t) {
    valid.i32()[t] = RandomBits(seed, 100 + t) % 4 != 0;
  }
  auto routing = Top2Gating(RandomTensor({tokens, experts}, seed), valid,
                            options, GatingNoise());
  EXPECT_OK(routing);
  gated.routing = *std::move(routing);
  auto plan =
      PlanDispatch(gated.routing.expert, gated.routing.slot, experts, 0);
  EXPECT_OK(plan);
  gated.plan = *std::move(plan);
  int64_t row = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t size = gated.plan.group_sizes.i32()[e];
    gated.lost_expert.push_back(RandomBits(seed, 1000 + e) % 3 == 0);
    if (gated.lost_expert.back()) gated.lost_rows.push_back({row, row + size});
    row += size;
  }
  return gated;
}

// The weights are those of a gate that finds the lost experts full after
// choosing, and then divides the weight among the remaining choices.
TEST(MissingExpertsTest, IsTheGateWithLostExpertsOverflowed) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Gated gated = MakeGated(seed, /*drop=*/seed % 2 == 0);
    const Tensor& weight = gated.routing.weight;
    ASSERT_OK_AND_ASSIGN(const RenormalizedWeights renormalized,
                         RenormalizeForMissingExperts(gated.plan.row_source,
                                                      weight, gated.lost_rows));
    ASSERT_OK_AND_ASSIGN(const RenormalizedWeights plain,
                         reference::RenormalizeForMissingExperts(
                             gated.plan.row_source, weight, gated.lost_rows));
    EXPECT_TRUE(TensorEqual(renormalized.weight, plain.weight));
    EXPECT_TRUE(TensorEqual(renormalized.lost, plain.lost));
    for (int64_t t = 0; t < weight.dim(0); ++t) {
      const float* const before = weight.f32() + 2 * t;
      const float* const after = renormalized.weight.f32() + 2 * t;
      bool kept[2], lost[2];
      for (int k = 0; k < 2; ++k) {
        const bool had = gated.routing.slot.i32()[2 * t + k] >= 0;
        const int32_t expert = gated.routing.expert.i32()[2 * t + k];
        lost[k] = had && gated.lost_expert[expert];
        kept[k] = had && !lost[k];
        if (!kept[k]) {
          EXPECT_EQ(after[k], 0.0f);
        }
      }
      EXPECT_EQ(renormalized.lost.i32()[t], lost[0] + lost[1]);
      if (!lost[0] && !lost[1]) {
        EXPECT_EQ(after[0], before[0]);
        EXPECT_EQ(after[1], before[1]);
      } else if (kept[0] || kept[1]) {
        EXPECT_FLOAT_EQ(after[0] + after[1], before[0] + before[1]);
      }
    }
  }
}

TEST(MissingExpertsTest, NothingLostChangesNoBitAndCopiesNothing) {
  const Gated gated = MakeGated(7, /*drop=*/false);
  ASSERT_OK_AND_ASSIGN(const RenormalizedWeights renormalized,
                       RenormalizeForMissingExperts(gated.plan.row_source,
                                                    gated.routing.weight, {}));
  EXPECT_EQ(renormalized.weight.raw(), gated.routing.weight.raw());
}

TEST(MissingExpertsTest, BothChoicesLostLeaveTheResidual) {
  const Tensor weight = Tensor::Floats({2, 2}, {0.75f, 0.25f, 0.5f, 0.5f});
  // Lost: rows 0 to 2, of both choices of token 0 and the second of token 1.
  const Tensor row_source = Tensor::Ints({4}, {0, 1, 3, 2});
  ASSERT_OK_AND_ASSIGN(
      const RenormalizedWeights renormalized,
      RenormalizeForMissingExperts(row_source, weight, {{{0, 1}, {1, 3}}}));
  EXPECT_THAT(renormalized.weight.span<float>(), ElementsAre(0, 0, 1.0f, 0));
  EXPECT_THAT(renormalized.lost.span<int32_t>(), ElementsAre(2, 1));
  const Tensor rows = Tensor::Floats({4, 1}, {0, 0, 0, 8});
  ASSERT_OK_AND_ASSIGN(const Tensor y,
                       Combine(rows, row_source, renormalized.weight));
  EXPECT_THAT(y.span<float>(), ElementsAre(0, 8.0f));
}

TEST(MissingExpertsTest, RefusesWhatIsNoRowOrNoChoice) {
  const Tensor weight = Tensor::Floats({1, 2}, {0.5f, 0.5f});
  const Tensor rows = Tensor::Ints({2}, {0, 2});
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (auto* renormalize : {RenormalizeForMissingExperts,
                            reference::RenormalizeForMissingExperts}) {
    EXPECT_THAT(renormalize(rows, weight, {{{0, 3}}}),
                StatusIs(kInvalid, HasSubstr("got [0, 3)")));
    EXPECT_THAT(renormalize(rows, weight, {{{1, 2}}}),
                StatusIs(kInvalid, HasSubstr("got 2 in row 1")));
    EXPECT_THAT(renormalize(rows, weight, {{{1, 1}, {0, 1}}}),
                StatusIs(kInvalid, HasSubstr("after 1")));
    EXPECT_THAT(renormalize(weight, weight, {}),
                StatusIs(kInvalid, HasSubstr("row_source i32[R]")));
  }
}

}  // namespace
}  // namespace gshard
