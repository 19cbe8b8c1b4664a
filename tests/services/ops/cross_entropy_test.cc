#include "services/ops/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/cross_entropy.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

const CrossEntropyOptions kOptions[] = {
    {}, {.smoothing = 0.1f}, {.smoothing = 0.1f, .z_loss = 1e-2f}};

Tensor Labels(int64_t n, int64_t v) {
  Tensor labels(ElementType::kInt32, {n});
  for (int64_t i = 0; i < n; ++i) {
    labels.i32()[i] = i % 4 == 3 ? -1 : static_cast<int32_t>(i * 7 % v);
  }
  return labels;
}

TEST(CrossEntropyTest, EqualsReference) {
  for (const Dims& dims :
       {Dims{1, 1}, Dims{3, 17}, Dims{17, 1000}, Dims{0, 5}}) {
    for (const CrossEntropyOptions& options : kOptions) {
      const Tensor logits = RandomTensor(dims, 1, 5.0f);
      const Tensor labels = Labels(dims[0], dims[1]);
      const Tensor upstream = Tensor::Scalar(0.7f);
      const CrossEntropyResult result = CrossEntropy(logits, labels, options);
      const CrossEntropyResult expected =
          reference::CrossEntropy(logits, labels, options);
      EXPECT_TRUE(TensorNear(result.loss_sum, expected.loss_sum, 1e-5f));
      EXPECT_TRUE(TensorNear(result.log_sum_exp, expected.log_sum_exp, 1e-6f));
      EXPECT_TRUE(TensorNear(
          CrossEntropyGradient(logits, labels, result.log_sum_exp, options,
                               upstream),
          reference::CrossEntropyGradient(logits, labels, options, upstream),
          2e-6f));
    }
  }
}

TEST(CrossEntropyTest, GradientEqualsDifferences) {
  for (const CrossEntropyOptions& options : kOptions) {
    const Tensor logits = RandomTensor({5, 6}, 1);
    const Tensor labels = Labels(5, 6);
    const Tensor upstream = Tensor::Scalar(2.0f);
    const Tensor log_sum_exp =
        CrossEntropy(logits, labels, options).log_sum_exp;
    EXPECT_TRUE(TensorNear(
        CrossEntropyGradient(logits, labels, log_sum_exp, options, upstream),
        NumericGradient(
            [&](const Tensor& at) {
              return reference::CrossEntropy(at, labels, options).loss_sum;
            },
            logits, upstream),
        2e-3f));
  }
}

TEST(CrossEntropyTest, UniformLogitsCostTheLogarithmOfTheVocabulary) {
  const Tensor logits = Tensor::Zeros(ElementType::kFloat32, {2, 8});
  const CrossEntropyResult result =
      CrossEntropy(logits, Tensor::Ints({2}, {3, 0}), {.smoothing = 0.1f});
  EXPECT_NEAR(result.loss_sum.f32()[0], 2 * std::log(8.0), 1e-6);
}

TEST(CrossEntropyTest, PaddingMayHoldAnything) {
  Tensor logits = RandomTensor({2, 3}, 1);
  const Tensor labels = Tensor::Ints({2}, {1, -1});
  const CrossEntropyResult before = CrossEntropy(logits, labels, {});
  for (int i = 3; i < 6; ++i) logits.f32()[i] = NAN;
  const CrossEntropyResult after = CrossEntropy(logits, labels, {});
  EXPECT_TRUE(TensorEqual(before.loss_sum, after.loss_sum));
  EXPECT_TRUE(TensorEqual(before.log_sum_exp, after.log_sum_exp));
  const Tensor dlogits = CrossEntropyGradient(logits, labels, after.log_sum_exp,
                                              {}, Tensor::Scalar(1.0f));
  EXPECT_TRUE(TensorEqual(dlogits.Rows(1, 2),
                          Tensor::Zeros(ElementType::kFloat32, {1, 3})));
}

}  // namespace
}  // namespace gshard
