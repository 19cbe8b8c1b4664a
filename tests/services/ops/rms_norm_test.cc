#include "services/ops/rms_norm.h"

#include <gtest/gtest.h>

#include "tests/reference/rms_norm.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr float kEpsilon = 1e-6f;

TEST(RmsNormTest, EqualsReference) {
  for (const Dims& dims : {Dims{1, 1}, Dims{3, 17}, Dims{2, 5, 100}, Dims{512},
                           Dims{0, 3}, Dims{65, 8}}) {
    const Tensor x = RandomTensor(dims, 1, 3.0f);
    const Tensor scale = RandomTensor({dims.back()}, 2);
    const Tensor dy = RandomTensor(dims, 3);
    const RmsNormResult result = RmsNorm(x, scale, kEpsilon);
    const RmsNormResult expected = reference::RmsNorm(x, scale, kEpsilon);
    EXPECT_TRUE(TensorNear(result.y, expected.y, 1e-5f));
    EXPECT_TRUE(TensorNear(result.inverse_rms, expected.inverse_rms, 1e-5f));
    const RmsNormGradients gradients =
        RmsNormGradient(x, scale, result.inverse_rms, dy);
    const RmsNormGradients reference_gradients =
        reference::RmsNormGradient(x, scale, result.inverse_rms, dy);
    EXPECT_TRUE(TensorNear(gradients.dx, reference_gradients.dx, 1e-5f));
    EXPECT_TRUE(
        TensorNear(gradients.dscale, reference_gradients.dscale, 2e-5f));
  }
}

TEST(RmsNormTest, GradientsEqualDifferences) {
  const Tensor x = RandomTensor({3, 5}, 1), scale = RandomTensor({5}, 2);
  const Tensor dy = RandomTensor({3, 5}, 3);
  const Tensor inverse_rms = RmsNorm(x, scale, kEpsilon).inverse_rms;
  const RmsNormGradients gradients = RmsNormGradient(x, scale, inverse_rms, dy);
  EXPECT_TRUE(TensorNear(gradients.dx,
                         NumericGradient(
                             [&](const Tensor& at) {
                               return reference::RmsNorm(at, scale, kEpsilon).y;
                             },
                             x, dy),
                         2e-3f));
  EXPECT_TRUE(TensorNear(gradients.dscale,
                         NumericGradient(
                             [&](const Tensor& at) {
                               return reference::RmsNorm(x, at, kEpsilon).y;
                             },
                             scale, dy),
                         2e-3f));
}

TEST(RmsNormTest, ARowIsTheSameWhereverItLies) {
  const Tensor x = RandomTensor({9, 37}, 1), scale = RandomTensor({37}, 2);
  const Tensor all = RmsNorm(x, scale, kEpsilon).y;
  for (int64_t r = 0; r < 9; ++r) {
    EXPECT_TRUE(TensorEqual(RmsNorm(x.Rows(r, r + 1), scale, kEpsilon).y,
                            all.Rows(r, r + 1)));
  }
}

}  // namespace
}  // namespace gshard
