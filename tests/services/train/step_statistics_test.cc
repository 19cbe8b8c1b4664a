#include "services/train/step_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepStatistics Sample() {
  StepStatistics statistics;
  statistics.target_tokens = 10;
  statistics.sentences = 2;
  statistics.loss_sum = 25.0;
  statistics.layers = {{.balance_loss_sum = 2.5,
                        .groups = 2,
                        .routed_first = 9,
                        .routed_second = 5,
                        .overflow_first = 1,
                        .overflow_second = 5,
                        .expert_rows = {10, 2, 1, 1}},
                       {.balance_loss_sum = 2.0,
                        .groups = 2,
                        .routed_first = 10,
                        .routed_second = 10,
                        .expert_rows = {5, 5, 5, 5}}};
  return statistics;
}

TEST(StepStatisticsTest, MeansByHand) {
  const StepStatistics statistics = Sample();
  EXPECT_DOUBLE_EQ(statistics.loss(), 2.5);
  EXPECT_DOUBLE_EQ(statistics.layers[0].balance_loss(), 1.25);
  EXPECT_DOUBLE_EQ(statistics.balance_loss(), 1.125);
  EXPECT_DOUBLE_EQ(statistics.overflow_share(), 6.0 / 40.0);
  EXPECT_DOUBLE_EQ(statistics.layers[0].imbalance(), 10 * 4 / 14.0);
  EXPECT_DOUBLE_EQ(statistics.layers[1].imbalance(), 1.0);
}

TEST(StepStatisticsTest, NothingHasNoNaN) {
  const StepStatistics nothing;
  EXPECT_EQ(nothing.loss(), 0.0);
  EXPECT_EQ(nothing.balance_loss(), 0.0);
  EXPECT_EQ(nothing.overflow_share(), 0.0);
  StepStatistics idle;
  idle.layers = {{.expert_rows = {0, 0}}, {}};
  EXPECT_EQ(idle.balance_loss(), 0.0);
  EXPECT_EQ(idle.overflow_share(), 0.0);
}

TEST(StepStatisticsTest, MergeAddsEverything) {
  StepStatistics step;
  ASSERT_OK(step.Merge(Sample()));
  ASSERT_OK(step.Merge(Sample()));
  ASSERT_OK(step.Merge(Sample()));
  EXPECT_EQ(step.target_tokens, 30);
  EXPECT_EQ(step.sentences, 6);
  EXPECT_DOUBLE_EQ(step.loss_sum, 75.0);
  const LayerStatistics& layer = step.layers[0];
  EXPECT_DOUBLE_EQ(layer.balance_loss_sum, 7.5);
  EXPECT_EQ(layer.groups, 6);
  EXPECT_EQ(layer.routed_first, 27);
  EXPECT_EQ(layer.routed_second, 15);
  EXPECT_EQ(layer.overflow_first, 3);
  EXPECT_EQ(layer.overflow_second, 15);
  EXPECT_THAT(layer.expert_rows, ElementsAre(30, 6, 3, 3));
  EXPECT_DOUBLE_EQ(step.loss(), Sample().loss());
  EXPECT_DOUBLE_EQ(step.overflow_share(), Sample().overflow_share());
}

TEST(StepStatisticsTest, MergeKeepsTheLargestLogits) {
  StepStatistics small = Sample(), large = Sample();
  small.logit_magnitude = 3.0;
  large.logit_magnitude = 7.0;
  small.layers[0].logit_magnitude = 2.0;
  small.layers[1].logit_magnitude = 5.0;
  large.layers[0].logit_magnitude = 4.0;
  for (const bool swap : {false, true}) {
    StepStatistics step;
    ASSERT_OK(step.Merge(swap ? large : small));
    ASSERT_OK(step.Merge(swap ? small : large));
    EXPECT_EQ(step.logit_magnitude, 7.0);
    EXPECT_EQ(step.layers[0].logit_magnitude, 4.0);
    EXPECT_EQ(step.layers[1].logit_magnitude, 5.0);
    EXPECT_EQ(step.gate_logit_magnitude(), 5.0);
  }
}

TEST(StepStatisticsTest, MergeRefusesAnotherModelsAndChangesNothing) {
  StepStatistics step = Sample();
  StepStatistics other = Sample();
  other.layers.pop_back();
  EXPECT_THAT(step.Merge(other),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("statistics of 2 layers, got 1")));
  other = Sample();
  other.layers[1].expert_rows.pop_back();
  EXPECT_THAT(step.Merge(other),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("layer 1: expected statistics of 4 experts, "
                                 "got 3")));
  EXPECT_EQ(step.target_tokens, 10);
}

TEST(OrderedStatisticsTest, MergesInOrderOfIndexAndKeepsOnlyWhatIsEarly) {
  // Sums of these depend on the order.
  const std::vector<double> losses = {1.0, 0x1p53, 1.0, -0x1p53, 3.0};
  const auto of = [&](int32_t index) {
    StepStatistics statistics = Sample();
    statistics.loss_sum = losses[index];
    return statistics;
  };
  StepStatistics expected;
  for (int32_t i = 0; i < 5; ++i) ASSERT_OK(expected.Merge(of(i)));
  OrderedStatistics ordered;
  std::vector<size_t> early;
  for (const int32_t index : {2, 1, 0, 4, 3}) {
    ASSERT_OK(ordered.Add(index, of(index)));
    early.push_back(ordered.num_early());
  }
  EXPECT_THAT(early, ElementsAre(1, 2, 0, 1, 0));
  EXPECT_EQ(ordered.sums().loss_sum, expected.loss_sum);
  EXPECT_EQ(ordered.sums().target_tokens, 50);
  EXPECT_THAT(ordered.sums().layers[0].expert_rows, ElementsAre(50, 10, 5, 5));
}

TEST(OrderedStatisticsTest, StatisticsOfAnotherModelAreAnError) {
  OrderedStatistics ordered;
  ASSERT_OK(ordered.Add(0, Sample()));
  StepStatistics other = Sample();
  other.layers.pop_back();
  EXPECT_THAT(ordered.Add(1, other),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected statistics of 2 layers, got 1")));
}

}  // namespace
}  // namespace gshard
