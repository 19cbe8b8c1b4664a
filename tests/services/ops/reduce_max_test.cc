#include "services/ops/reduce_max.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/reference/reduce_max.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

struct Case {
  Dims dims;
  std::vector<int> reduced;
};
const Case kCases[] = {
    {{3, 17, 5}, {0}},
    {{3, 17, 5}, {1}},
    {{3, 17, 5}, {2}},
    {{3, 17, 5}, {0, 2}},
    {{3, 17, 5}, {0, 1}},
    {{3, 17, 5}, {}},
    {{3, 4}, {0, 1}},
    {{2, 0, 3}, {1}},
    {{0, 3}, {1}},
    {{0, 3}, {0}},
    {{}, {}},
};

// Few different values, so that many tie.
Tensor Coarse(Dims dims, uint64_t seed) {
  Tensor tensor = RandomTensor(std::move(dims), seed, 3.0f);
  for (float& x : tensor.span<float>()) x = std::round(x);
  return tensor;
}

TEST(ReduceMaxTest, EqualsReference) {
  for (const Case& c : kCases) {
    for (const Tensor& x : {RandomTensor(c.dims, 1), Coarse(c.dims, 2)}) {
      const Tensor y = ReduceMax(x, c.reduced);
      EXPECT_TRUE(TensorEqual(y, reference::ReduceMax(x, c.reduced)));
      const Tensor dy = RandomTensor(y.dims(), 3);
      EXPECT_TRUE(
          TensorEqual(ReduceMaxGradient(x, y, dy, c.reduced),
                      reference::ReduceMaxGradient(x, y, dy, c.reduced)))
          << x.TypeString();
    }
  }
}

TEST(ReduceMaxTest, TiesShareTheGradient) {
  const Tensor x = Tensor::Floats({2, 3}, {1, 4, 4, 0, -1, -2});
  const Tensor y = ReduceMax(x, {1});
  EXPECT_TRUE(TensorEqual(y, Tensor::Floats({2}, {4, 0})));
  EXPECT_TRUE(
      TensorEqual(ReduceMaxGradient(x, y, Tensor::Floats({2}, {3, 5}), {1}),
                  Tensor::Floats({2, 3}, {0, 1.5, 1.5, 5, 0, 0})));
}

TEST(ReduceMaxTest, NanIsTheLargestAndGetsNoGradient) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& row :
       {std::vector<float>{nan, 1, 2}, {1, nan, 2}, {1, 2, nan}}) {
    const Tensor x = Tensor::Floats({3}, row);
    const Tensor y = ReduceMax(x, {0});
    EXPECT_TRUE(std::isnan(y.f32()[0]));
    EXPECT_TRUE(TensorEqual(ReduceMaxGradient(x, y, Tensor::Scalar(1.0f), {0}),
                            Tensor::Floats({3}, {0, 0, 0})));
  }
}

}  // namespace
}  // namespace gshard
