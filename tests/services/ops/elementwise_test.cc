#include "services/ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/reference/elementwise.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

struct Pair {
  Dims a, b;
};
const Pair kPairs[] = {{{3, 17}, {3, 17}}, {{5, 3, 17}, {3, 17}},
                       {{5, 3, 17}, {17}}, {{4, 1}, {1}},
                       {{7}, {}},          {{}, {}},
                       {{0, 3}, {3}},      {{3, 0}, {0}}};

TEST(ElementwiseTest, ReluOfBFloat16IsRightForAllValues) {
  Tensor x(ElementType::kBFloat16, {1 << 16});
  for (int64_t i = 0; i < x.size(); ++i) {
    x.data<BFloat16>()[i].bits = static_cast<uint16_t>(i);
  }
  const Tensor y = Relu(x.Clone());
  for (int64_t i = 0; i < x.size(); ++i) {
    const BFloat16 value = std::as_const(x).data<BFloat16>()[i];
    ASSERT_EQ(y.data<BFloat16>()[i].bits,
              ToFloat(value) < 0.0f ? 0 : value.bits)
        << i;
  }
}

TEST(ElementwiseTest, EqualsReference) {
  for (const Pair& pair : kPairs) {
    const Tensor a = RandomTensor(pair.a, 1), b = RandomTensor(pair.b, 2);
    EXPECT_TRUE(TensorEqual(Add(a, b), reference::Add(a, b)));
    EXPECT_TRUE(TensorEqual(Subtract(a, b), reference::Subtract(a, b)));
    EXPECT_TRUE(TensorEqual(Multiply(a, b), reference::Multiply(a, b)));
    EXPECT_TRUE(TensorEqual(Divide(a, b), reference::Divide(a, b)));
    EXPECT_TRUE(TensorNear(Exp(a), reference::Exp(a), 1e-6f));
    EXPECT_TRUE(TensorEqual(Scale(a, 0.3f), reference::Scale(a, 0.3f)));
    EXPECT_TRUE(TensorEqual(Relu(a), reference::Relu(a)));
    const Tensor dy = RandomTensor(pair.a, 3);
    EXPECT_TRUE(TensorEqual(ReluGradient(Relu(a), dy),
                            reference::ReluGradient(Relu(a), dy)));
    EXPECT_TRUE(TensorNear(SumToSuffix(a, pair.b),
                           reference::SumToSuffix(a, pair.b), 1e-6f));
  }
}

// A device may hold one column of several.
TEST(ElementwiseTest, AColumnHasTheSameSumAloneAndAmongOthers) {
  const Tensor both = RandomTensor({1000, 2}, 1);
  Tensor first(ElementType::kFloat32, {1000, 1});
  for (int64_t row = 0; row < 1000; ++row) {
    first.f32()[row] = both.f32()[2 * row];
  }
  EXPECT_EQ(SumToSuffix(first, {1}).f32()[0], SumToSuffix(both, {2}).f32()[0]);
}

TEST(ElementwiseTest, GradientsEqualDifferences) {
  const Tensor a = RandomTensor({4, 3}, 1), b = RandomTensor({3}, 2);
  const Tensor dy = RandomTensor({4, 3}, 3);
  EXPECT_TRUE(
      TensorNear(SumToSuffix(Multiply(dy, a), {3}),
                 NumericGradient(
                     [&](const Tensor& x) { return reference::Multiply(a, x); },
                     b, dy, 0.25f),
                 1e-4f));
  EXPECT_TRUE(TensorNear(
      ReluGradient(Relu(a), dy),
      NumericGradient([](const Tensor& x) { return reference::Relu(x); }, a, dy,
                      1e-3f),
      1e-3f));
}

TEST(ElementwiseTest, ExpIsExactToTheExtremes) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {-infinity, infinity, 88.5f,   88.9f,
                               -87.2f,    -95.0f,   -103.9f, -200.0f};
  for (int i = -900; i <= 900; ++i) values.push_back(0.1f * i);
  const Tensor x =
      Tensor::Floats({static_cast<int64_t>(values.size())}, values);
  const Tensor y = Exp(x), expected = reference::Exp(x);
  for (int64_t i = 0; i < x.size(); ++i) {
    if (std::isinf(expected.f32()[i])) {
      EXPECT_EQ(y.f32()[i], infinity);
      continue;
    }
    // 2 ulp, or 2 steps of the smallest numbers.
    EXPECT_NEAR(y.f32()[i], expected.f32()[i],
                expected.f32()[i] * 2.4e-7f + 3e-45f)
        << x.f32()[i];
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Exp(Tensor::Scalar(nan)).f32()[0]));
}

// The bits of Exp do not depend on an element's neighbours or position.
TEST(ElementwiseTest, ExpHasTheSameBitsWherever) {
  const Tensor x = RandomTensor({300}, 1, 90.0f);
  const Tensor y = Exp(x);
  for (const int64_t begin : {0, 1, 63, 64, 65, 299}) {
    EXPECT_TRUE(
        TensorEqual(Exp(x.Rows(begin, 300).Clone()), y.Rows(begin, 300)));
  }
}

TEST(ElementwiseTest, OverwritesWhatNobodyElseHolds) {
  Tensor a = RandomTensor({3, 4}, 1);
  const Tensor kept = a.Clone();
  const Tensor b = RandomTensor({3, 4}, 2);

  const Tensor copied = Add(a, b);
  EXPECT_NE(copied.raw(), a.raw());
  EXPECT_TRUE(TensorEqual(a, kept));

  // The second operand's buffer is reused if the first is shared.
  Tensor second = b.Clone();
  const std::byte* buffer = second.raw();
  const Tensor in_second = Add(a, std::move(second));
  EXPECT_EQ(in_second.raw(), buffer);
  EXPECT_TRUE(TensorEqual(in_second, copied));

  buffer = a.raw();
  const Tensor in_first = Add(std::move(a), b);
  EXPECT_EQ(in_first.raw(), buffer);
  EXPECT_TRUE(TensorEqual(in_first, copied));
}

TEST(ElementwiseTest, ATensorWithItself) {
  const Tensor a = RandomTensor({5}, 1);
  EXPECT_TRUE(TensorEqual(Add(a, a), Scale(a, 2.0f)));
}

TEST(IsSuffixTest, ComparesTheLastSizes) {
  EXPECT_TRUE(IsSuffix({}, {2, 3}));
  EXPECT_TRUE(IsSuffix({3}, {2, 3}));
  EXPECT_FALSE(IsSuffix({2}, {2, 3}));
  EXPECT_FALSE(IsSuffix({1, 2, 3}, {2, 3}));
}

}  // namespace
}  // namespace gshard
