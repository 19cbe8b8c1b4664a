#include "services/ops/elementwise.h"

#include <gtest/gtest.h>

#include <utility>

#include "services/ops/reference/elementwise.h"
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

TEST(ElementwiseTest, EqualsReference) {
  for (const Pair& pair : kPairs) {
    const Tensor a = RandomTensor(pair.a, 1), b = RandomTensor(pair.b, 2);
    EXPECT_TRUE(TensorEqual(Add(a, b), reference::Add(a, b)));
    EXPECT_TRUE(TensorEqual(Multiply(a, b), reference::Multiply(a, b)));
    EXPECT_TRUE(TensorEqual(Scale(a, 0.3f), reference::Scale(a, 0.3f)));
    EXPECT_TRUE(TensorEqual(Relu(a), reference::Relu(a)));
    const Tensor dy = RandomTensor(pair.a, 3);
    EXPECT_TRUE(TensorEqual(ReluGradient(Relu(a), dy),
                            reference::ReluGradient(Relu(a), dy)));
    EXPECT_TRUE(TensorNear(SumToSuffix(a, pair.b),
                           reference::SumToSuffix(a, pair.b), 1e-6f));
  }
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

TEST(ElementwiseTest, OverwritesWhatNobodyElseHolds) {
  Tensor a = RandomTensor({3, 4}, 1);
  const Tensor kept = a.Clone();
  const Tensor b = RandomTensor({3, 4}, 2);

  const Tensor copied = Add(a, b);
  EXPECT_NE(copied.raw(), a.raw());
  EXPECT_TRUE(TensorEqual(a, kept));

  // The second operand serves if the first is shared.
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
