#include "services/train/gradient_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/reference/optimizer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(GradientNormTest, SmallCasesByHand) {
  EXPECT_EQ(SumOfSquares({}), 0.0);
  EXPECT_EQ(SumOfSquares({3.0f}), 9.0);
  EXPECT_EQ(SumOfSquares({1, 2, 3, 4, 5, 6, 7, 8, 9}), 285.0);
}

TEST(GradientNormTest, AgreesWithPlainLoopsAtEverySize) {
  for (int64_t size = 0; size < 100; ++size) {
    const Tensor values = RandomTensor({size}, size);
    const double expected = reference::SumOfSquares(values.span<float>());
    EXPECT_NEAR(SumOfSquares(values.span<float>()), expected, 1e-14 * expected)
        << size;
  }
}

// Sums in double keep squares that float32 cannot hold, and small values beside
// large ones.
TEST(GradientNormTest, SumsInDouble) {
  EXPECT_NEAR(SumOfSquares({1e-30f, 1e-30f}) / 2e-60, 1.0, 1e-6);
  EXPECT_TRUE(std::isfinite(SumOfSquares({3e38f, 3e38f})));
  std::vector<float> values(1 << 16, 1.0f);
  values[0] = 16384.0f;
  EXPECT_EQ(SumOfSquares(values), 268435456.0 + 65535.0);
}

TEST(GradientNormTest, DependsOnNoAlignment) {
  const Tensor values = RandomTensor({1000}, 5);
  std::vector<float> shifted(1011);
  for (int offset = 0; offset < 11; ++offset) {
    std::copy_n(values.f32(), 1000, shifted.data() + offset);
    EXPECT_EQ(SumOfSquares(absl::MakeConstSpan(shifted).subspan(offset, 1000)),
              SumOfSquares(values.span<float>()));
  }
}

TEST(GradientNormTest, ScalesDownToTheLargestNorm) {
  const auto scale = [](double squares, double max_norm) {
    return GlobalNormScale(squares, max_norm).value();
  };
  EXPECT_EQ(scale(25.0, 1.0), 0.2);
  EXPECT_EQ(scale(25.0, 5.0), 1.0);
  EXPECT_EQ(scale(25.0, 6.0), 1.0);
  EXPECT_EQ(scale(25.0, 0.0), 1.0);
  EXPECT_EQ(scale(0.0, 1.0), 1.0);
}

TEST(GradientNormTest, RefusesGradientsThatAreNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double squares : {std::nan(""), infinity, -1.0}) {
    for (const double max_norm : {0.0, 1.0}) {
      EXPECT_THAT(GlobalNormScale(squares, max_norm),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("the gradient is not finite")));
    }
  }
  for (const double max_norm : {std::nan(""), infinity, -1.0}) {
    EXPECT_THAT(GlobalNormScale(1.0, max_norm),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("the largest norm")));
  }
  const float nan = std::nanf("");
  EXPECT_TRUE(std::isnan(SumOfSquares({1, 2, 3, nan, 5, 6, 7, 8, 9, 10})));
}

}  // namespace
}  // namespace gshard
