#include "services/ops/embedding.h"

#include <gtest/gtest.h>

#include "services/ops/cast.h"
#include "tests/reference/shape.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/panels.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(EmbeddingTest, TakesRowsById) {
  const Tensor table = RandomTensor({7, 17}, 1);
  const Tensor ids = Tensor::Ints({2, 3}, {6, 0, 3, 3, 1, 6});
  const Tensor result = Embedding(table, ids);
  EXPECT_EQ(result.dims(), (Dims{2, 3, 17}));
  EXPECT_TRUE(
      TensorEqual(result.Reshaped({6, 17}), reference::GatherRows(table, ids)));
  EXPECT_EQ(Embedding(table, Tensor::Ints({0, 4}, {})).dims(),
            (Dims{0, 4, 17}));
}

TEST(EmbeddingTest, TakesRowsOfBFloat16AsFloats) {
  const Tensor table = Cast(RandomTensor({7, 17}, 1), ElementType::kBFloat16);
  const Tensor ids = Tensor::Ints({3}, {6, 0, 3});
  EXPECT_TRUE(TensorEqual(Embedding(table, ids),
                          Embedding(Cast(table, ElementType::kFloat32), ids)));
}

TEST(EmbeddingTest, ARowMayBeAColumnOfPanels) {
  const Tensor ids = Tensor::Ints({4}, {47, 0, 48, 63});
  for (const auto type : {ElementType::kFloat32, ElementType::kBFloat16}) {
    const Tensor table = Cast(RandomTensor({64, 18}, 1), type);
    EXPECT_TRUE(
        TensorEqual(Embedding(InPanels(table, 1, 18, /*transposed=*/true), ids),
                    Embedding(table, ids)));
  }
}

TEST(EmbeddingTest, GradientEqualsDifferences) {
  const Tensor table = RandomTensor({5, 3}, 1);
  const Tensor ids = Tensor::Ints({2, 3}, {4, 0, 3, 3, 3, 4});
  const Tensor dresult = RandomTensor({2, 3, 3}, 2);
  const Tensor dtable = EmbeddingGradient(dresult, ids, 5);
  EXPECT_TRUE(TensorNear(
      dtable,
      NumericGradient(
          [&](const Tensor& at) { return reference::GatherRows(at, ids); },
          table, dresult, 0.25f),
      1e-4f));
  EXPECT_TRUE(TensorNear(
      dtable, reference::ScatterAddRows(dresult.Reshaped({6, 3}), ids, 5),
      1e-6f));
}

TEST(CheckIdsTest, NamesTheFirstBadId) {
  EXPECT_OK(CheckIds(Tensor::Ints({2}, {0, 6}), 7));
  EXPECT_THAT(CheckIds(Tensor::Ints({3}, {0, 7, -1}), 7),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("position 1: expected in [0, 7), got 7")));
  EXPECT_THAT(
      CheckIds(Tensor::Ints({1}, {-1}), 7),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got -1")));
}

}  // namespace
}  // namespace gshard
