#include "services/ops/ragged_dot.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "services/ops/cast.h"
#include "tests/reference/ragged_dot.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/panels.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

const std::vector<std::vector<int32_t>> kGroupSizes = {
    {3, 0, 17, 1}, {0, 0, 0}, {1}, {0, 5}, {33, 2, 0, 0}, {}};

int64_t Sum(const std::vector<int32_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

TEST(RaggedDotTest, EqualsReference) {
  for (const std::vector<int32_t>& sizes : kGroupSizes) {
    const int64_t groups = sizes.size(), num_rows = Sum(sizes);
    const Tensor group_sizes = Tensor::Ints({groups}, sizes);
    for (const int64_t m : {1, 17, 32}) {
      const int64_t h = 2 * m + 1;
      const Tensor rows = RandomTensor({num_rows, m}, 1);
      const Tensor weights = RandomTensor({groups, m, h}, 2);
      const Tensor dresult = RandomTensor({num_rows, h}, 3);
      const Tensor bias = RandomTensor({groups, h}, 4);
      EXPECT_TRUE(TensorNear(RaggedDot(rows, weights, group_sizes),
                             reference::RaggedDot(rows, weights, group_sizes),
                             1e-5f));
      EXPECT_TRUE(TensorNear(
          RaggedDotRowsGradient(dresult, weights, group_sizes),
          reference::RaggedDotRowsGradient(dresult, weights, group_sizes),
          1e-5f));
      EXPECT_TRUE(TensorNear(
          RaggedDotWeightsGradient(rows, dresult, group_sizes),
          reference::RaggedDotWeightsGradient(rows, dresult, group_sizes),
          1e-5f));
      EXPECT_TRUE(
          TensorEqual(RaggedBiasAdd(dresult, bias, group_sizes),
                      reference::RaggedBiasAdd(dresult, bias, group_sizes)));
      EXPECT_TRUE(TensorNear(
          RaggedBiasGradient(dresult, group_sizes),
          reference::RaggedBiasGradient(dresult, group_sizes), 1e-5f));
    }
  }
}

// Weights' gradients are zero for experts without rows, even with so many
// groups that they are ZeroRows in reused buffers.
TEST(RaggedDotTest, LargeGradientsAreZeroWithoutRows) {
  constexpr int64_t kGroups = 160, kM = 48, kH = 144;
  for (int step = 0; step < 6; ++step) {
    std::vector<int32_t> sizes(kGroups);
    for (int64_t e = 0; e < kGroups; ++e) {
      sizes[e] = step == 3 ? 1 : (e * (step + 3)) % 5 == 0 ? step % 3 + 1 : 0;
    }
    const int64_t num_rows = Sum(sizes);
    const Tensor group_sizes = Tensor::Ints({kGroups}, sizes);
    const Tensor rows = RandomTensor({num_rows, kM}, 1);
    const Tensor dresult = RandomTensor({num_rows, kH}, 2);
    const Tensor dweights =
        RaggedDotWeightsGradient(rows, dresult, group_sizes);
    EXPECT_TRUE(TensorNear(
        dweights,
        reference::RaggedDotWeightsGradient(rows, dresult, group_sizes),
        1e-5f));
    EXPECT_EQ(dweights.IsZeroRow(1), sizes[1] == 0);
  }
}

TEST(RaggedDotTest, BFloat16EqualsReference) {
  const auto low = [](const Tensor& x) {
    return Cast(x, ElementType::kBFloat16);
  };
  for (const std::vector<int32_t>& sizes : kGroupSizes) {
    const int64_t groups = sizes.size(), num_rows = Sum(sizes);
    const Tensor group_sizes = Tensor::Ints({groups}, sizes);
    for (const int64_t m : {1, 17, 32}) {
      const int64_t h = 2 * m + 1;
      const Tensor rows = low(RandomTensor({num_rows, m}, 1));
      const Tensor weights = low(RandomTensor({groups, m, h}, 2));
      const Tensor dresult = low(RandomTensor({num_rows, h}, 3));
      EXPECT_TRUE(TensorNear(RaggedDot(rows, weights, group_sizes),
                             reference::RaggedDot(rows, weights, group_sizes),
                             1e-5f));
      EXPECT_TRUE(TensorNear(
          RaggedDotRowsGradient(dresult, weights, group_sizes),
          reference::RaggedDotRowsGradient(dresult, weights, group_sizes),
          1e-5f));
      EXPECT_TRUE(TensorNear(
          RaggedDotWeightsGradient(rows, dresult, group_sizes),
          reference::RaggedDotWeightsGradient(rows, dresult, group_sizes),
          1e-5f));
    }
  }
}

TEST(RaggedDotTest, GradientsEqualDifferences) {
  const Tensor group_sizes = Tensor::Ints({4}, {2, 0, 3, 1});
  const Tensor rows = RandomTensor({6, 3}, 1);
  const Tensor weights = RandomTensor({4, 3, 5}, 2);
  const Tensor bias = RandomTensor({4, 5}, 3);
  const Tensor dresult = RandomTensor({6, 5}, 4);
  EXPECT_TRUE(TensorNear(RaggedDotRowsGradient(dresult, weights, group_sizes),
                         NumericGradient(
                             [&](const Tensor& x) {
                               return reference::RaggedDot(x, weights,
                                                           group_sizes);
                             },
                             rows, dresult, 0.25f),
                         1e-4f));
  EXPECT_TRUE(TensorNear(RaggedDotWeightsGradient(rows, dresult, group_sizes),
                         NumericGradient(
                             [&](const Tensor& x) {
                               return reference::RaggedDot(rows, x,
                                                           group_sizes);
                             },
                             weights, dresult, 0.25f),
                         1e-4f));
  EXPECT_TRUE(TensorNear(RaggedBiasGradient(dresult, group_sizes),
                         NumericGradient(
                             [&](const Tensor& x) {
                               return reference::RaggedBiasAdd(dresult, x,
                                                               group_sizes);
                             },
                             bias, dresult, 0.25f),
                         1e-4f));
}

TEST(RaggedDotTest, WeightsInPanelsGiveTheSameBits) {
  // float32 sums over more than 256 rows are split in two.
  for (const auto& [type, m] : {std::pair(ElementType::kBFloat16, 70),
                                std::pair(ElementType::kFloat32, 70),
                                std::pair(ElementType::kFloat32, 300)}) {
    for (const std::vector<int32_t>& sizes : kGroupSizes) {
      const int64_t groups = sizes.size(), num_rows = Sum(sizes);
      if (groups == 0) continue;
      const Tensor group_sizes = Tensor::Ints({groups}, sizes);
      for (const int64_t h : {16, 32, 48, 64, 320, 528}) {
        const Tensor rows = Cast(RandomTensor({num_rows, m}, 1), type);
        const Tensor weights = Cast(RandomTensor({groups, m, h}, 2), type);
        const Tensor panels = InPanels(weights, groups, m);
        ASSERT_EQ(panels.bytes(), weights.bytes());
        EXPECT_TRUE(TensorEqual(RaggedDot(rows, panels, group_sizes),
                                RaggedDot(rows, weights, group_sizes)))
            << m << " " << h;
      }
    }
  }
}

TEST(RaggedDotTest, ARowIsTheSameWhateverItsGroupHolds) {
  for (const auto type : {ElementType::kFloat32, ElementType::kBFloat16}) {
    const Tensor weights = Cast(RandomTensor({1, 48, 65}, 1), type);
    const Tensor rows = Cast(RandomTensor({40, 48}, 2), type);
    const Tensor all = RaggedDot(rows, weights, Tensor::Ints({1}, {40}));
    for (int32_t n = 1; n < 40; ++n) {
      EXPECT_TRUE(TensorEqual(
          RaggedDot(rows.Rows(0, n), weights, Tensor::Ints({1}, {n})),
          all.Rows(0, n)));
    }
  }
}

TEST(RaggedDotTest, BiasIsAddedInPlaceOnlyIfNobodyElseLooks) {
  const Tensor group_sizes = Tensor::Ints({1}, {2});
  const Tensor bias = Tensor::Floats({1, 1}, {1});
  Tensor rows = Tensor::Floats({2, 1}, {1, 2});
  const Tensor shared = RaggedBiasAdd(rows, bias, group_sizes);
  EXPECT_TRUE(TensorEqual(rows, Tensor::Floats({2, 1}, {1, 2})));
  const std::byte* buffer = rows.raw();
  const Tensor moved = RaggedBiasAdd(std::move(rows), bias, group_sizes);
  EXPECT_EQ(moved.raw(), buffer);
  EXPECT_TRUE(TensorEqual(moved, shared));
}

TEST(CheckGroupSizesTest, NamesBothNumbers) {
  EXPECT_OK(CheckGroupSizes(Tensor::Ints({2}, {1, 2}), 3));
  EXPECT_THAT(CheckGroupSizes(Tensor::Ints({2}, {1, 2}), 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected the sum 4, got 3")));
  EXPECT_THAT(CheckGroupSizes(Tensor::Ints({2}, {5, -1}), 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("group size 1: expected at least 0")));
}

}  // namespace
}  // namespace gshard
