#include "services/ops/softmax.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/softmax.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

TEST(SoftmaxTest, EqualsReference) {
  for (const Dims& dims : {Dims{1, 1}, Dims{3, 17}, Dims{2, 5, 100}, Dims{1000},
                           Dims{0, 3}, Dims{3, 0}}) {
    for (const float scale : {1.0f, 50.0f}) {
      const Tensor x = RandomTensor(dims, 1, scale);
      const Tensor y = Softmax(x);
      EXPECT_TRUE(TensorNear(y, reference::Softmax(x), 1e-6f));
      const Tensor dy = RandomTensor(dims, 2);
      EXPECT_TRUE(TensorNear(SoftmaxGradient(y, dy),
                             reference::SoftmaxGradient(y, dy), 1e-6f));
    }
  }
}

TEST(SoftmaxTest, GradientEqualsDifferences) {
  const Tensor x = RandomTensor({3, 5}, 1), dy = RandomTensor({3, 5}, 2);
  EXPECT_TRUE(TensorNear(
      SoftmaxGradient(Softmax(x), dy),
      NumericGradient([](const Tensor& at) { return reference::Softmax(at); },
                      x, dy),
      1e-3f));
}

TEST(SoftmaxTest, MinusInfinityIsZeroAndLargeLogitsDoNotOverflow) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor y =
      Softmax(Tensor::Floats({2, 3}, {-infinity, 3e38f, 0, -1e30f, -1e30f, 5}));
  EXPECT_TRUE(TensorEqual(y, Tensor::Floats({2, 3}, {0, 1, 0, 0, 0, 1})));
}

TEST(SoftmaxTest, ARowIsTheSameWhereverItLies) {
  const Tensor x = RandomTensor({9, 37}, 1);
  const Tensor all = Softmax(x);
  for (int64_t r = 0; r < 9; ++r) {
    EXPECT_TRUE(TensorEqual(Softmax(x.Rows(r, r + 1)), all.Rows(r, r + 1)));
    EXPECT_TRUE(
        TensorEqual(Softmax(x.Rows(r, r + 1).Clone()), all.Rows(r, r + 1)));
  }
}

TEST(SoftmaxTest, StatisticsGiveARowItsBitsAgain) {
  for (const int64_t visible : {0, 1, 5, 16, 33, 200}) {
    for (const float scale : {0.125f, 0.3f, 3.0f}) {
      const int64_t padded = visible + 3;
      Tensor x = RandomTensor({padded}, visible, 5.0f), again = x.Clone();
      const SoftmaxStatistics statistics =
          SoftmaxRow(x.f32(), visible, padded, scale);
      SoftmaxRowAgain(again.f32(), visible, padded, scale, statistics);
      EXPECT_TRUE(TensorEqual(again, x));
      EXPECT_EQ(statistics.factor > 0.0f, visible > 0);
    }
  }
}

}  // namespace
}  // namespace gshard
