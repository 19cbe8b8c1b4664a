#include "services/ops/dropout.h"

#include <gtest/gtest.h>

#include "tests/reference/elementwise.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

TEST(DropoutTest, EqualsReference) {
  for (const Dims& dims : {Dims{1}, Dims{3, 17}, Dims{1000}, Dims{0, 3}}) {
    for (const float rate : {0.0f, 0.1f, 0.5f, 0.999f}) {
      for (const uint64_t key : {0ull, 7ull, ~0ull}) {
        const Tensor x = RandomTensor(dims, 1);
        EXPECT_TRUE(TensorNear(Dropout(x, rate, key),
                               reference::Dropout(x, rate, key), 1e-6f));
      }
    }
  }
}

TEST(DropoutTest, DropsTheRateAndKeepsTheMean) {
  const Tensor ones = Tensor::Floats({20000}, std::vector<float>(20000, 1.0f));
  const Tensor y = Dropout(ones, 0.25f, 3);
  int64_t dropped = 0;
  for (int64_t i = 0; i < y.size(); ++i) {
    dropped += y.f32()[i] == 0.0f;
    EXPECT_TRUE(y.f32()[i] == 0.0f || y.f32()[i] == 1.0f / 0.75f);
  }
  EXPECT_NEAR(static_cast<double>(dropped) / 20000, 0.25, 0.015);
}

TEST(DropoutTest, MaskGoesWithTheRowWhereverItIs) {
  const Tensor ones = Tensor::Floats({6, 17}, std::vector<float>(6 * 17, 1.0f));
  const Tensor in_order = Dropout(ones, 0.4f, 9);
  const std::vector<int32_t> rows = {4, 0, 5, 5};
  const Tensor sent =
      DropoutRows(ones.Rows(0, 4).Clone(), Tensor::Ints({4}, rows), 0.4f, 9);
  for (size_t r = 0; r < rows.size(); ++r) {
    EXPECT_TRUE(
        TensorEqual(sent.Rows(r, r + 1), in_order.Rows(rows[r], rows[r] + 1)));
  }
}

TEST(DropoutTest, RateZeroIsTheIdentity) {
  const Tensor x = RandomTensor({5}, 1);
  EXPECT_TRUE(TensorEqual(Dropout(x, 0.0f, 1), x));
}

}  // namespace
}  // namespace gshard
