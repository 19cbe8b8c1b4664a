#include "services/ops/positions.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/tensors.h"

namespace gshard {
namespace {

TEST(PositionsTest, SinesThenCosines) {
  for (const int64_t width : {1, 2, 3, 16, 17, 512}) {
    const Tensor positions = Tensor::Ints({2, 3}, {0, 5, 1, 70, 5, 9999});
    const Tensor result = SinusoidalPositions(positions, width);
    ASSERT_EQ(result.dims(), (Dims{2, 3, width}));
    const int64_t half = width / 2;
    for (int64_t p = 0; p < 6; ++p) {
      const float* row = result.f32() + p * width;
      for (int64_t i = 0; i < half; ++i) {
        const double exponent =
            half > 1 ? static_cast<double>(i) / (half - 1) : 0.0;
        const double angle = positions.i32()[p] / std::pow(10000.0, exponent);
        EXPECT_NEAR(row[i], std::sin(angle), 1e-6);
        EXPECT_NEAR(row[half + i], std::cos(angle), 1e-6);
      }
      if (width % 2 == 1) {
        EXPECT_EQ(row[width - 1], 0.0f);
      }
    }
  }
}

TEST(PositionsTest, APositionIsTheSameWhateverWasAskedBefore) {
  const Tensor first = SinusoidalPositions(Tensor::Ints({1}, {3}), 8);
  SinusoidalPositions(Tensor::Ints({2}, {500, 2}), 8);
  SinusoidalPositions(Tensor::Ints({2}, {1, 2}), 6);
  EXPECT_TRUE(
      TensorEqual(SinusoidalPositions(Tensor::Ints({1}, {3}), 8), first));
  EXPECT_EQ(SinusoidalPositions(Tensor::Ints({0}, {}), 8).size(), 0);
}

}  // namespace
}  // namespace gshard
