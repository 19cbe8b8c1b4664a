#include "services/ops/layer_norm.h"

#include <gtest/gtest.h>

#include "tests/reference/layer_norm.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr float kEpsilon = 1e-6f;

TEST(LayerNormTest, EqualsReference) {
  for (const Dims& dims : {Dims{1, 2}, Dims{3, 17}, Dims{2, 5, 100}, Dims{512},
                           Dims{0, 3}, Dims{65, 8}}) {
    const Tensor x = RandomTensor(dims, 1, 3.0f);
    const Tensor scale = RandomTensor({dims.back()}, 2);
    const Tensor bias = RandomTensor({dims.back()}, 3);
    const Tensor dy = RandomTensor(dims, 4);
    const LayerNormResult result = LayerNorm(x, scale, bias, kEpsilon);
    const LayerNormResult expected =
        reference::LayerNorm(x, scale, bias, kEpsilon);
    EXPECT_TRUE(TensorNear(result.y, expected.y, 1e-5f));
    EXPECT_TRUE(TensorNear(result.mean, expected.mean, 1e-5f));
    EXPECT_TRUE(TensorNear(result.inverse_std, expected.inverse_std, 1e-5f));
    const LayerNormGradients gradients =
        LayerNormGradient(x, scale, result.mean, result.inverse_std, dy);
    const LayerNormGradients reference_gradients = reference::LayerNormGradient(
        x, scale, result.mean, result.inverse_std, dy);
    EXPECT_TRUE(TensorNear(gradients.dx, reference_gradients.dx, 1e-5f));
    EXPECT_TRUE(
        TensorNear(gradients.dscale, reference_gradients.dscale, 2e-5f));
    EXPECT_TRUE(TensorNear(gradients.dbias, reference_gradients.dbias, 2e-5f));
  }
}

TEST(LayerNormTest, GradientsEqualDifferences) {
  const Tensor x = RandomTensor({3, 5}, 1), scale = RandomTensor({5}, 2);
  const Tensor bias = RandomTensor({5}, 3), dy = RandomTensor({3, 5}, 4);
  const LayerNormResult result = LayerNorm(x, scale, bias, kEpsilon);
  const LayerNormGradients gradients =
      LayerNormGradient(x, scale, result.mean, result.inverse_std, dy);
  EXPECT_TRUE(
      TensorNear(gradients.dx,
                 NumericGradient(
                     [&](const Tensor& at) {
                       return reference::LayerNorm(at, scale, bias, kEpsilon).y;
                     },
                     x, dy),
                 2e-3f));
  EXPECT_TRUE(
      TensorNear(gradients.dscale,
                 NumericGradient(
                     [&](const Tensor& at) {
                       return reference::LayerNorm(x, at, bias, kEpsilon).y;
                     },
                     scale, dy),
                 2e-3f));
  EXPECT_TRUE(
      TensorNear(gradients.dbias,
                 NumericGradient(
                     [&](const Tensor& at) {
                       return reference::LayerNorm(x, scale, at, kEpsilon).y;
                     },
                     bias, dy),
                 2e-3f));
}

TEST(LayerNormTest, ARowIsTheSameWhereverItLies) {
  const Tensor x = RandomTensor({9, 37}, 1), scale = RandomTensor({37}, 2);
  const Tensor bias = RandomTensor({37}, 3);
  const Tensor all = LayerNorm(x, scale, bias, kEpsilon).y;
  for (int64_t r = 0; r < 9; ++r) {
    EXPECT_TRUE(
        TensorEqual(LayerNorm(x.Rows(r, r + 1), scale, bias, kEpsilon).y,
                    all.Rows(r, r + 1)));
  }
}

}  // namespace
}  // namespace gshard
