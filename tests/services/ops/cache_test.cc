#include "services/ops/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

TEST(CacheTest, WritesEachRowIntoItsSlot) {
  const Tensor cache = RandomTensor({3, 5, 2, 4}, 1);
  const Tensor entry = RandomTensor({3, 1, 2, 4}, 2);
  const std::vector<int32_t> slots = {14, 0, 7};
  const Tensor updated = UpdateCache(cache, entry, Tensor::Ints({3}, slots));
  for (int64_t slot = 0; slot < 15; ++slot) {
    const auto found = std::find(slots.begin(), slots.end(), slot);
    for (int64_t i = 0; i < 8; ++i) {
      const float expected = found == slots.end()
                                 ? cache.f32()[slot * 8 + i]
                                 : entry.f32()[(found - slots.begin()) * 8 + i];
      EXPECT_EQ(updated.f32()[slot * 8 + i], expected);
    }
  }
}

TEST(CacheTest, IsUpdatedInPlaceUnlessShared) {
  Tensor cache = RandomTensor({1, 2, 1, 3}, 1);
  const Tensor entry = RandomTensor({1, 1, 1, 3}, 2);
  const Tensor slots = Tensor::Ints({1}, {1});
  const float* const memory = cache.f32();
  const Tensor kept = cache.Clone();

  const Tensor copied = UpdateCache(cache, entry, slots);
  EXPECT_NE(copied.f32(), memory);
  EXPECT_TRUE(TensorEqual(cache, kept));

  const Tensor in_place = UpdateCache(std::move(cache), entry, slots);
  EXPECT_EQ(in_place.f32(), memory);
  EXPECT_TRUE(TensorEqual(in_place, copied));
}

TEST(CacheTest, SlotsOutsideAreRefused) {
  EXPECT_OK(CheckSlots(Tensor::Ints({2}, {0, 4}), 5));
  EXPECT_THAT(CheckSlots(Tensor::Ints({2}, {0, 5}), 5),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("[0, 5), got 5")));
  EXPECT_THAT(CheckSlots(Tensor::Ints({1}, {-1}), 5),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("got -1")));
}

}  // namespace
}  // namespace gshard
