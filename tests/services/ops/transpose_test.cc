#include "services/ops/transpose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "services/ops/cast.h"
#include "tests/reference/shape.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

TEST(TransposeTest, EqualsReferenceForEveryPermutation) {
  for (const Dims& dims :
       {Dims{}, Dims{3}, Dims{17, 33}, Dims{3, 17, 5}, Dims{2, 3, 1, 17},
        Dims{2, 0, 3}, Dims{2, 3, 2, 3, 2}}) {
    const Tensor x = RandomTensor(dims, 1);
    std::vector<int> permutation(dims.size());
    std::iota(permutation.begin(), permutation.end(), 0);
    do {
      ASSERT_TRUE(TensorEqual(Transpose(x, permutation),
                              reference::Transpose(x, permutation)))
          << x.TypeString();
    } while (std::next_permutation(permutation.begin(), permutation.end()));
  }
}

TEST(TransposeTest, OfBFloat16) {
  for (const std::vector<int>& permutation :
       {std::vector<int>{2, 1, 0}, {1, 0, 2}, {0, 2, 1}}) {
    const Tensor x = Cast(RandomTensor({17, 33, 5}, 1), ElementType::kBFloat16);
    EXPECT_TRUE(
        TensorEqual(Transpose(x, permutation),
                    Cast(Transpose(Cast(x, ElementType::kFloat32), permutation),
                         ElementType::kBFloat16)));
  }
}

TEST(TransposeTest, SharesTheBufferIfNothingMoves) {
  const Tensor x = RandomTensor({3, 1, 5}, 1);
  EXPECT_EQ(Transpose(x, {1, 0, 2}).raw(), x.raw());
  EXPECT_NE(Transpose(x, {2, 1, 0}).raw(), x.raw());
}

TEST(TransposeTest, OfIntegers) {
  EXPECT_TRUE(TensorEqual(Transpose(Tensor::Ints({1, 2}, {1, 2}), {1, 0}),
                          Tensor::Ints({2, 1}, {1, 2})));
}

}  // namespace
}  // namespace gshard
