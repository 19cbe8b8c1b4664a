#include "services/moe/gate_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "services/base/random.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

// Sizes around multiples of the vector width, and larger ones.
const int64_t kSizes[] = {1, 2, 3, 31, 32, 33, 63, 64, 65, 100, 2048, 2051};

TEST(FindTop2, IsTheTwoLargestLowestFirst) {
  for (const int64_t E : kSizes) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      SCOPED_TRACE(testing::Message() << "E " << E << " seed " << seed);
      Tensor x = RandomTensor({E}, seed, 4.0f);
      if (seed % 2) {
        for (float& v : x.span<float>()) v = std::round(v);
      }
      if (seed % 3 == 0) x.f32()[0] = -std::numeric_limits<float>::infinity();
      int32_t first = 0, second = -1;
      for (int64_t e = 1; e < E; ++e) {
        if (x.f32()[e] > x.f32()[first]) first = static_cast<int32_t>(e);
      }
      for (int64_t e = 0; e < E; ++e) {
        if (e != first && (second < 0 || x.f32()[e] > x.f32()[second])) {
          second = static_cast<int32_t>(e);
        }
      }
      const Top2 top = FindTop2(x.f32(), E);
      EXPECT_EQ(top.first, first);
      EXPECT_EQ(top.second, second);
    }
  }
}

TEST(FindTop2, AllMaskedStillGivesTwo) {
  for (const int64_t E : {2, 40, 64}) {
    const std::vector<float> x(E, -std::numeric_limits<float>::infinity());
    const Top2 top = FindTop2(x.data(), E);
    EXPECT_EQ(top.first, 0);
    EXPECT_EQ(top.second, 1);
  }
}

TEST(ExpRow, IsExpAndItsSum) {
  for (const int64_t E : kSizes) {
    const Tensor x = RandomTensor({E}, E, 43.0f);
    std::vector<float> p(E);
    const float sum = ExpRow(x.f32(), 43.0f, E, p.data());
    double expected_sum = 0.0;
    for (int64_t e = 0; e < E; ++e) {
      const double expected = std::exp(double{x.f32()[e]} - 43.0);
      expected_sum += expected;
      // The difference is rounded, too, and exp magnifies the error.
      EXPECT_NEAR(p[e], expected, expected * 1.5e-5);
    }
    EXPECT_NEAR(sum, expected_sum, expected_sum * 1.5e-5);
  }
}

TEST(ExpRow, IsAsAccurateAsItSays) {
  std::vector<float> x, p;
  for (float v = -87.0f; v <= 0.0f; v += 0x1p-7f) x.push_back(v);
  p.resize(x.size());
  ExpRow(x.data(), 0.0f, static_cast<int64_t>(x.size()), p.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(double{x[i]});
    ASSERT_NEAR(p[i], expected, expected * (0x1p-22 - x[i] * 0x1p-23)) << x[i];
  }
}

TEST(ExpRow, EndsOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {0.0f, -88.0f, -1e30f, -inf, std::nanf("")};
  float p[5];
  ExpRow(x, 0.0f, 5, p);
  EXPECT_EQ(p[0], 1.0f);
  EXPECT_FLOAT_EQ(p[1], 0x1p-126f);
  EXPECT_EQ(p[2], 0x1p-126f);
  EXPECT_EQ(p[3], 0x1p-126f);
  EXPECT_TRUE(std::isnan(p[4]));
}

TEST(AddScaled, Adds) {
  for (const int64_t E : kSizes) {
    const Tensor row = RandomTensor({E}, 1);
    Tensor sum = RandomTensor({E}, 2), expected = sum.Clone();
    for (int64_t e = 0; e < E; ++e) expected.f32()[e] += 0.5f * row.f32()[e];
    AddScaled(row.f32(), 0.5f, E, sum.f32());
    EXPECT_TRUE(TensorEqual(sum, expected));
  }
}

TEST(SoftmaxGradientRow, IsTheGradient) {
  for (const int64_t E : kSizes) {
    const Tensor x = RandomTensor({E}, 1, 5.0f), f = RandomTensor({E}, 2);
    double total = 0.0, mean = 0.0;
    for (int64_t e = 0; e < E; ++e) total += std::exp(double{x.f32()[e]});
    for (int64_t e = 0; e < E; ++e) {
      mean += std::exp(double{x.f32()[e]}) / total * f.f32()[e];
    }
    Tensor got(ElementType::kFloat32, {E}), expected = got.Clone();
    SoftmaxGradientRow(x.f32(), static_cast<float>(std::log(total)), f.f32(),
                       0.25f, E, got.f32());
    for (int64_t e = 0; e < E; ++e) {
      expected.f32()[e] = static_cast<float>(
          std::exp(double{x.f32()[e]}) / total * (f.f32()[e] - mean + 0.25));
    }
    EXPECT_TRUE(TensorNear(got, expected, 2e-6f));
  }
}

}  // namespace
}  // namespace gshard
