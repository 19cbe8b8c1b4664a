#include "services/graph/bf16_weights.h"

#include "services/graph/builder.h"
#include "services/graph/executor.h"
#include "services/ops/cast.h"
#include "tests/testing/panels.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr auto kBFloat16 = ElementType::kBFloat16;
constexpr WeightForm kRowMajor;

// x times "once" and then, by `equation`, times "again".
Program Products(const std::string& equation, bool gives_once = false) {
  Builder b("products");
  const ValueId x = b.Input("x", {kBFloat16, {Dim::Symbol("N"), 32}});
  const ValueId once = b.Parameter("once", {32, 32}, kBFloat16);
  const ValueId y = b.Cast(b.Einsum("bm,mn->bn", x, once), kBFloat16);
  b.Output("y",
           b.Einsum(equation, y, b.Parameter("again", {32, 32}, kBFloat16)));
  b.Output("wide", b.Multiply(b.Cast(y, ElementType::kFloat32),
                              b.Parameter("wide", {32})));
  if (gives_once) b.Output("once", once);
  return *std::move(b).Finish();
}

TEST(Bf16WeightsTest, WhatIsOnlyMultipliedByLiesInPanels) {
  EXPECT_THAT(Bf16WeightsOf(Products("bm,mn->bn")),
              UnorderedElementsAre(Pair("once", WeightForm{0, 1}),
                                   Pair("again", WeightForm{0, 1})));
  EXPECT_THAT(Bf16WeightsOf(Products("bn,mn->bm")),
              UnorderedElementsAre(Pair("once", WeightForm{0, 1}),
                                   Pair("again", kRowMajor)));
  EXPECT_THAT(Bf16WeightsOf(Products("bm,mn->bn", /*gives_once=*/true)),
              UnorderedElementsAre(Pair("once", kRowMajor),
                                   Pair("again", WeightForm{0, 1})));
}

TEST(Bf16WeightsTest, ExpertsAreABatchOfMatrices) {
  Builder b("experts");
  const ValueId rows = b.Input("rows", {kBFloat16, {Dim::Symbol("N"), 32}});
  const ValueId sizes = b.Input("sizes", {ElementType::kInt32, {4}});
  b.Output("y",
           b.RaggedDot(rows, b.Parameter("wi", {4, 32, 48}, kBFloat16), sizes));
  EXPECT_THAT(Bf16WeightsOf(*std::move(b).Finish()),
              UnorderedElementsAre(Pair("wi", WeightForm{1, 1})));
}

TEST(Bf16WeightsTest, ProgramsMustAgree) {
  Bf16Weights weights = {{"a", {0, 1}}, {"b", {0, 1}}, {"c", {0, 1}}};
  MergeBf16Weights({{"b", {0, 1}}, {"c", {0, 2}}, {"d", {1, 1}}}, weights);
  MergeBf16Weights({{"c", {0, 1}}}, weights);
  EXPECT_THAT(weights, UnorderedElementsAre(Pair("a", WeightForm{0, 1}),
                                            Pair("b", WeightForm{0, 1}),
                                            Pair("c", kRowMajor),
                                            Pair("d", WeightForm{1, 1})));
}

TEST(Bf16WeightsTest, OnlyTheCpuTakesPanels) {
  const Executor executor(Products("bm,mn->bn"), Backend::kCuda);
  EXPECT_THAT(
      executor.bf16_weights(),
      UnorderedElementsAre(Pair("once", kRowMajor), Pair("again", kRowMajor)));
}

TEST(Bf16WeightsTest, APanelWhereRowsAreWantedIsAnError) {
  const Tensor rows = Cast(RandomTensor({32, 32}, 1), kBFloat16);
  const TensorMap inputs = {{"x", Cast(RandomTensor({5, 32}, 2), kBFloat16)}};
  const Tensor panels = InPanels(rows, 1, 32);
  const Tensor wide = RandomTensor({32}, 3);
  const auto run = [&](const std::string& equation, const Tensor& again) {
    return Executor(Products(equation))
        .Run(inputs, {{"once", rows}, {"again", again}, {"wide", wide}});
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> expected,
                       run("bm,mn->bn", rows));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y, run("bm,mn->bn", panels));
  EXPECT_TRUE(TensorEqual(y[0], expected[0]));
  EXPECT_THAT(run("bn,mn->bm", Tensor::Panels({32, 32}, 32)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter 'again': expected no panels, got "
                                 "panels of 32 rows")));
  EXPECT_THAT(run("bm,mn->bn", Tensor::Panels({32, 32}, 16)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected panels of other rows, got panels of "
                                 "16 rows")));
}

}  // namespace
}  // namespace gshard
