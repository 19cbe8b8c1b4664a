#include "services/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;

TEST(TensorTest, ADefaultTensorIsAbsentAndAnEmptyOneIsNot) {
  EXPECT_TRUE(Tensor().empty());
  const Tensor none(ElementType::kFloat32, {0, 5});
  EXPECT_FALSE(none.empty());
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(none.bytes(), 0u);
}

TEST(TensorTest, KnowsItsTypeDimsAndSize) {
  const Tensor tensor(ElementType::kInt64, {2, 3, 4});
  EXPECT_EQ(tensor.rank(), 3);
  EXPECT_EQ(tensor.dim(1), 3);
  EXPECT_EQ(tensor.size(), 24);
  EXPECT_EQ(tensor.bytes(), 192u);
  EXPECT_EQ(tensor.TypeString(), "i64[2, 3, 4]");
  EXPECT_EQ(Tensor::Scalar(1).TypeString(), "f32[]");
  EXPECT_EQ(Tensor::Scalar(2.5f).f32()[0], 2.5f);
}

TEST(TensorTest, NumElementsOfAScalarIsOne) {
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(NumElements({4, 0, 2}), 0);
  EXPECT_EQ(NumElements({4, 3}), 12);
  EXPECT_EQ(DimsToString({}), "[]");
  EXPECT_EQ(DimsToString({4, 3}), "[4, 3]");
}

TEST(TensorTest, HoldsTheValuesGiven) {
  EXPECT_THAT(Tensor::Ints({2, 2}, {1, 2, 3, 4}).span<int32_t>(),
              ElementsAre(1, 2, 3, 4));
  const Tensor zeros = Tensor::Zeros(ElementType::kFloat64, {3});
  EXPECT_THAT(zeros.span<double>(), ElementsAre(0, 0, 0));
}

TEST(TensorTest, CopiesShareTheBufferAndClonesDoNot) {
  Tensor tensor = Tensor::Floats({2}, {1, 2});
  EXPECT_TRUE(tensor.unique());
  const Tensor copy = tensor;
  EXPECT_FALSE(tensor.unique());
  const Tensor clone = tensor.Clone();
  EXPECT_TRUE(clone.unique());
  tensor.f32()[0] = 9;
  EXPECT_EQ(copy.f32()[0], 9);
  EXPECT_EQ(clone.f32()[0], 1);
}

TEST(TensorTest, PanelsStayPanelsInCopiesElsewhere) {
  Tensor panels = Tensor::Panels(ElementType::kInt8, {2, 3}, 2, 64);
  std::memset(panels.panels<int8_t>(), 7, 64);
  const Tensor clone = panels.Clone();
  EXPECT_NE(clone.buffer(), panels.buffer());
  EXPECT_EQ(std::memcmp(clone.buffer(), panels.buffer(), 64), 0);
  const std::shared_ptr<std::byte> there(new std::byte[64],
                                         std::default_delete<std::byte[]>());
  const Tensor moved = panels.WithData(there, /*on_device=*/true);
  EXPECT_EQ(moved.device_data(), there.get());
  const Tensor back = moved.WithData(there, /*on_device=*/false);
  EXPECT_EQ(back.buffer(), there.get());
  for (const Tensor* const tensor : {&clone, &moved, &back}) {
    EXPECT_EQ(tensor->TypeString(), "i8[2, 3]");
    EXPECT_EQ(tensor->panel_rows(), 2);
    EXPECT_EQ(tensor->bytes(), 64u);
    EXPECT_EQ(tensor->on_host(), tensor != &moved);
  }
}

TEST(TensorTest, ReshapedKeepsTheElementsAndTheBuffer) {
  const Tensor tensor = Tensor::Floats({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor flat = tensor.Reshaped({6});
  EXPECT_EQ(flat.TypeString(), "f32[6]");
  EXPECT_EQ(flat.raw(), tensor.raw());
  EXPECT_FALSE(tensor.unique());
}

TEST(TensorTest, RowsAreAViewOfTheOutermostDimension) {
  const Tensor tensor = Tensor::Ints({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor rows = tensor.Rows(1, 3);
  EXPECT_EQ(rows.TypeString(), "i32[2, 2]");
  EXPECT_THAT(rows.span<int32_t>(), ElementsAre(3, 4, 5, 6));
  EXPECT_FALSE(tensor.unique());
  EXPECT_EQ(tensor.Rows(2, 2).size(), 0);
  EXPECT_EQ(tensor.Rows(3, 3).size(), 0);
  EXPECT_EQ(Tensor(ElementType::kFloat32, {0, 4}).Rows(0, 0).TypeString(),
            "f32[0, 4]");
}

// Rows that are not written are zero in any block: sets of rows are written in
// turn, as experts have tokens in one step and none in the next. Blocks of the
// larger size are mapped; smaller ones hold arbitrary old data.
TEST(TensorTest, ZeroRowsAreZerosInWhateverBlock) {
  TrimBufferCache();
  for (const int64_t width : {5, 5000}) {
    const Dims dims = {7, width};
    for (uint32_t set : {0x05, 0x41, 0x7f, 0x00, 0x22, 0x22, 0x80, 0x13}) {
      if (set == 0x80) {  // leaves other contents in the block
        const Tensor other = RandomTensor(dims, 1);
        continue;
      }
      std::vector<bool> written(7);
      for (int64_t i = 0; i < 7; ++i) written[i] = (set >> i & 1) != 0;
      Tensor tensor = Tensor::ZeroRows(ElementType::kFloat32, dims, written);
      for (int64_t i = 0; i < 7; ++i) {
        EXPECT_EQ(tensor.IsZeroRow(i), !written[i]);
        for (int64_t j = 0; j < width; ++j) {
          float& element = tensor.f32()[i * width + j];
          if (written[i]) {
            element = 3.0f;
          } else {
            ASSERT_EQ(element, 0.0f) << i << " " << j << " of " << set;
          }
        }
      }
    }
  }
}

TEST(TensorTest, NobodyOverwritesZeroRows) {
  const Tensor tensor =
      Tensor::ZeroRows(ElementType::kFloat32, {3, 2}, {false, true, false});
  EXPECT_FALSE(tensor.unique());
  const Tensor view = tensor.Rows(1, 3);
  EXPECT_FALSE(view.IsZeroRow(0));
  EXPECT_TRUE(view.IsZeroRow(1));
  Tensor reshaped = tensor.Reshaped({2, 3});
  EXPECT_FALSE(reshaped.IsZeroRow(0));
  EXPECT_FALSE(
      Tensor::ZeroRows(ElementType::kFloat32, {3, 2}, {true, true, true})
          .Reshaped({6})
          .unique());
  EXPECT_TRUE(tensor.Clone().unique());
}

TEST(TensorTest, AViewKeepsTheBufferAlive) {
  Tensor rows;
  {
    const Tensor tensor = Tensor::Floats({2, 2}, {1, 2, 3, 4});
    rows = tensor.Rows(1, 2);
  }
  EXPECT_THAT(rows.span<float>(), ElementsAre(3, 4));
  EXPECT_TRUE(rows.unique());
}

TEST(TensorTest, WrapKeepsTheOwnerOfItsMemoryAlive) {
  auto owner = std::make_shared<std::vector<float>>(4, 1.5f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  {
    auto* const data = reinterpret_cast<std::byte*>(owner->data());
    const Tensor tensor =
        Tensor::Wrap(ElementType::kFloat32, {2, 2}, data, std::move(owner));
    EXPECT_EQ(tensor.f32()[3], 1.5f);
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(TensorDeathTest, WrongUseIsABugOfOurs) {
  const Tensor tensor = Tensor::Floats({2, 2}, {1, 2, 3, 4});
  EXPECT_DEATH(tensor.data<int32_t>(), "CHECK failed");
  EXPECT_DEATH(tensor.Reshaped({3}), "CHECK failed");
  EXPECT_DEATH(tensor.Rows(1, 3), "CHECK failed");
  EXPECT_DEATH(Tensor(ElementType::kFloat32, {-1}), "CHECK failed");
  EXPECT_DEATH(Tensor::Floats({3}, {1, 2}), "CHECK failed");
}

// The comparisons that other tests rely on detect every difference.
TEST(TensorComparisonTest, NearAndEqualSeeEveryDifference) {
  const Tensor a = Tensor::Floats({2}, {1, 2});
  EXPECT_TRUE(TensorEqual(a, a.Clone()));
  EXPECT_TRUE(TensorNear(a, Tensor::Floats({2}, {1, 2.00001f}), 1e-4f));
  EXPECT_FALSE(TensorEqual(a, Tensor::Floats({2}, {1, 2.00001f})));
  EXPECT_FALSE(TensorNear(a, Tensor::Floats({2}, {1, 2.1f}), 1e-4f));
  EXPECT_FALSE(TensorNear(a, a.Reshaped({2, 1}), 1e-4f));
  EXPECT_FALSE(TensorEqual(a, a.Reshaped({1, 2})));
  EXPECT_FALSE(TensorEqual(a, Tensor::Ints({2}, {1, 2})));
  const Tensor nan = Tensor::Floats({1}, {std::nanf("")});
  EXPECT_FALSE(TensorNear(nan, nan, 1.0f));
}

}  // namespace
}  // namespace gshard
