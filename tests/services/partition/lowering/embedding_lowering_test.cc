#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/partitioned_case.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Looks up ids [2, 3] in a table [V, 4].
template <typename Function>
Builder EmbeddingCase(int64_t vocabulary, bool gradient, Function annotate) {
  Builder b("embedding");
  const ValueId table = b.Parameter("table", {vocabulary, 4});
  const ValueId ids = b.Input("ids", {ElementType::kInt32, {2, 3}});
  const ValueId y = b.Embedding(table, ids);
  annotate(b, table, ids, y);
  b.Output("y", y);
  if (gradient) AddWeightedGradients(b, y, {table});
  return b;
}

TensorMap Ids() { return {{"ids", IntTensor({2, 3}, {0, 9, 4, 4, 10, 8})}}; }

TEST(EmbeddingLoweringTest, ASplitVocabularyIsAllReduced) {
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int64_t vocabulary : {41, 48}) {
      for (const bool gradient : {false, true}) {
        EXPECT_THAT(
            CheckCase(EmbeddingCase(vocabulary, gradient,
                                    [](Builder& b, ValueId table, ValueId,
                                       ValueId) { Split(b, table, 0, "d"); }),
                      Line(devices), Ids(), 0),
            ElementsAre("all_reduce"));
      }
    }
  }
}

TEST(EmbeddingLoweringTest, OneDevice) {
  EXPECT_THAT(CheckCase(EmbeddingCase(11, true,
                                      [](Builder& b, ValueId table, ValueId,
                                         ValueId) { Split(b, table, 0, "d"); }),
                        Line(1), Ids(), 0),
              IsEmpty());
}

TEST(EmbeddingLoweringTest, ARowWantedInPartsIsScattered) {
  for (const int64_t devices : {2, 4}) {
    EXPECT_THAT(CheckCase(EmbeddingCase(48, false,
                                        [](Builder& b, ValueId table, ValueId,
                                           ValueId y) {
                                          Split(b, table, 0, "d");
                                          Split(b, y, 2, "d");
                                        }),
                          Line(devices), Ids(), 0),
                ElementsAre("reduce_scatter"));
  }
}

// With many ids, reducing the table's gradient costs less than gathering rows.
TEST(EmbeddingLoweringTest, SplitIdsAddUpTheGradient) {
  std::vector<int32_t> ids(50);
  for (int32_t i = 0; i < 50; ++i) ids[i] = i * 7 % 6;
  for (const int64_t devices : {2, 3, 4, 8}) {
    for (const int dim : {0, 1}) {
      Builder b("embedding");
      const ValueId table = b.Parameter("table", {6, 4});
      const ValueId x = b.Input("ids", {ElementType::kInt32, {10, 5}});
      Split(b, x, dim, "d");
      AddWeightedGradients(b, b.Embedding(table, x), {table});
      EXPECT_THAT(CheckCase(std::move(b), Line(devices),
                            {{"ids", IntTensor({10, 5}, ids)}}, 1e-5f),
                  ElementsAre("all_reduce"));
    }
  }
}

TEST(EmbeddingLoweringTest, IdsAndVocabularyOnTwoAxes) {
  for (const int64_t vocabulary : {11, 60}) {
    const auto split = [](Builder& b, ValueId table, ValueId ids, ValueId) {
      Split(b, table, 0, "x");
      Split(b, ids, 0, "y");
    };
    CheckCase(EmbeddingCase(vocabulary, true, split), Square(), Ids(), 1e-5f);
  }
}

TEST(EmbeddingLoweringTest, AnIdBeyondTheVocabularyIsAnError) {
  Builder b =
      EmbeddingCase(11, false, [](Builder& b, ValueId table, ValueId, ValueId) {
        Split(b, table, 0, "d");
      });
  const Program program = *std::move(b).Finish();
  const DeviceMesh mesh = Line(2);
  const auto partitioned = Partition(program, mesh);
  ASSERT_OK(partitioned.status());
  const TensorMap inputs = {{"ids", IntTensor({2, 3}, {0, 9, 4, 4, 11, 7})}};
  const TensorMap parameters = {{"table", RandomTensor({11, 4}, 1)}};
  const std::vector<Tensor> whole = {RandomTensor({2, 3, 4}, 1)};
  EXPECT_EQ(RunPartitioned(*partitioned, mesh, inputs, parameters, whole)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gshard
