#include "services/ops/padding.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "services/base/random.h"
#include "services/ops/fill.h"
#include "services/ops/reverse.h"
#include "tests/reference/padding.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kInt32,
                                  ElementType::kInt64, ElementType::kFloat64,
                                  ElementType::kUint8};

// Elements with different bytes, so that misplaced ones show.
Tensor Counting(ElementType type, Dims dims) {
  Tensor tensor(type, std::move(dims));
  for (size_t i = 0; i < tensor.bytes(); ++i) {
    tensor.raw()[i] = static_cast<std::byte>(1 + i % 120);
  }
  return tensor;
}

TEST(PaddingTest, PadEqualsReferenceForEveryType) {
  int nonempty = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](int64_t low, int64_t high) {
      return low +
             static_cast<int64_t>(RandomBelow(seed, draws++, high - low + 1));
    };
    Dims dims;
    std::vector<Padding> padding;
    bool leaves_a_size = true;
    for (int64_t d = draw(0, 3); d > 0; --d) {
      dims.push_back(draw(0, 5));
      padding.push_back(
          {.low = draw(-3, 3), .high = draw(-3, 3), .interior = draw(0, 2)});
      // Half of the dimensions have no padding and are copied in one go.
      if (draw(0, 1) == 0) padding.back() = {};
      leaves_a_size =
          leaves_a_size && PaddedSize(dims.back(), padding.back()) >= 0;
    }
    if (!leaves_a_size) continue;
    const Tensor x = Counting(kTypes[seed % 5], dims);
    const Tensor padded = Pad(x, padding, 3.0);
    EXPECT_TRUE(TensorEqual(padded, reference::Pad(x, padding, 3.0)))
        << "seed " << seed;
    nonempty += padded.size() > 0 ? 1 : 0;
  }
  EXPECT_GT(nonempty, 100);
}

TEST(PaddingTest, MaskAndReverseEqualReferenceForEveryType) {
  for (const ElementType type : kTypes) {
    const Tensor x = Counting(type, {3, 4, 5});
    for (int dim = 0; dim < 3; ++dim) {
      for (const int64_t limit : {-2, 0, 1, 3, 4, 100}) {
        EXPECT_TRUE(TensorEqual(MaskTail(x, dim, limit, 7.0),
                                reference::MaskTail(x, dim, limit, 7.0)));
        EXPECT_TRUE(TensorEqual(MaskTail(x.Clone(), dim, limit, 7.0),
                                reference::MaskTail(x, dim, limit, 7.0)));
      }
    }
    for (const std::vector<int>& dims : std::vector<std::vector<int>>{
             {}, {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
      EXPECT_TRUE(TensorEqual(Reverse(x, dims), reference::Reverse(x, dims)));
      EXPECT_TRUE(TensorEqual(Reverse(Reverse(x, dims), dims), x));
    }
  }
}

TEST(PaddingTest, MaskOverwritesOnlyWhatNobodyElseHolds) {
  Tensor x = Tensor::Ints({3}, {1, 2, 3});
  const Tensor masked = MaskTail(x, 0, 1, 0.0);
  EXPECT_TRUE(TensorEqual(x, Tensor::Ints({3}, {1, 2, 3})));
  EXPECT_TRUE(TensorEqual(masked, Tensor::Ints({3}, {1, 0, 0})));
  const std::byte* buffer = std::as_const(x).raw();
  const Tensor again = MaskTail(std::move(x), 0, 1, 0.0);
  EXPECT_EQ(again.raw(), buffer);
  EXPECT_TRUE(TensorEqual(again, masked));
}

TEST(FillTest, KnowsWhatATypeHolds) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {0.5, -kInfinity, kNan, 1e300}) {
    EXPECT_TRUE(IsElement(ElementType::kFloat32, value));
    EXPECT_TRUE(IsElement(ElementType::kFloat64, value));
    EXPECT_FALSE(IsElement(ElementType::kInt32, value));
    EXPECT_FALSE(IsElement(ElementType::kInt64, value));
    EXPECT_FALSE(IsElement(ElementType::kUint8, value));
  }
  EXPECT_TRUE(IsElement(ElementType::kInt32, -0x1p31));
  EXPECT_TRUE(IsElement(ElementType::kInt32, 0x1p31 - 1));
  EXPECT_FALSE(IsElement(ElementType::kInt32, 0x1p31));
  EXPECT_TRUE(IsElement(ElementType::kInt64, -0x1p63));
  EXPECT_FALSE(IsElement(ElementType::kInt64, 0x1p63));
  EXPECT_TRUE(IsElement(ElementType::kUint8, 255));
  EXPECT_FALSE(IsElement(ElementType::kUint8, 256));
  EXPECT_FALSE(IsElement(ElementType::kUint8, -1));
}

}  // namespace
}  // namespace gshard
