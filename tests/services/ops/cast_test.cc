#include "services/ops/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "tests/reference/cast.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

// Casts match for all upper halves, with lower halves around the midpoint.
TEST(CastTest, EqualsReferenceOnAllUpperHalves) {
  std::vector<float> numbers;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower :
         {0u, 1u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      numbers.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  const Tensor x =
      Tensor::Floats({static_cast<int64_t>(numbers.size())}, numbers);
  const Tensor rounded = Cast(x, ElementType::kBFloat16);
  EXPECT_TRUE(TensorEqual(rounded, reference::Cast(x, ElementType::kBFloat16)));
  EXPECT_TRUE(TensorEqual(Cast(rounded, ElementType::kFloat32),
                          reference::Cast(rounded, ElementType::kFloat32)));
}

TEST(CastTest, KeepsSizesAndSharesWhatHasTheType) {
  const Tensor x = RandomTensor({3, 0, 5}, 1);
  EXPECT_EQ(Cast(x, ElementType::kBFloat16).TypeString(), "bf16[3, 0, 5]");
  const Tensor y = RandomTensor({3, 5}, 1);
  EXPECT_EQ(Cast(y, ElementType::kFloat32).raw(), y.raw());
}

}  // namespace
}  // namespace gshard
