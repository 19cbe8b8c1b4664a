#include "services/graph/weight_forms.h"

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
constexpr auto kInt8 = ElementType::kInt8;
constexpr WeightForm kRowMajor;
constexpr WeightForm kWide{.type = ElementType::kFloat32};

// Multiplies x by "once" and the result, as `equation` says, by "again".
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

TEST(WeightFormsTest, WhatIsOnlyMultipliedByLiesInPanels) {
  const auto wide = Pair("wide", kWide);
  EXPECT_THAT(WeightFormsOf(Products("bm,mn->bn")),
              UnorderedElementsAre(Pair("once", WeightForm{0, 1}),
                                   Pair("again", WeightForm{0, 1}), wide));
  EXPECT_THAT(
      WeightFormsOf(Products("bn,mn->bm")),
      UnorderedElementsAre(Pair("once", WeightForm{0, 1}),
                           Pair("again", WeightForm{0, 1, true}), wide));
  EXPECT_THAT(WeightFormsOf(Products("bm,mn->nb")),
              UnorderedElementsAre(Pair("once", WeightForm{0, 1}),
                                   Pair("again", kRowMajor), wide));
  EXPECT_THAT(WeightFormsOf(Products("bm,mn->bn", /*gives_once=*/true)),
              UnorderedElementsAre(Pair("once", kRowMajor),
                                   Pair("again", WeightForm{0, 1}), wide));
}

TEST(WeightFormsTest, SoDoWeightsOfFloat32) {
  Builder b("float32");
  const ValueId x =
      b.Input("x", {ElementType::kFloat32, {Dim::Symbol("N"), 32}});
  b.Output("y", b.Einsum("bm,mn->bn", x, b.Parameter("w", {32, 48})));
  EXPECT_THAT(
      WeightFormsOf(*std::move(b).Finish()),
      UnorderedElementsAre(
          Pair("w", WeightForm{.row_dims = 1, .type = ElementType::kFloat32})));
}

TEST(WeightFormsTest, ExpertsAreABatchOfMatrices) {
  Builder b("experts");
  const ValueId rows = b.Input("rows", {kBFloat16, {Dim::Symbol("N"), 32}});
  const ValueId sizes = b.Input("sizes", {ElementType::kInt32, {4}});
  b.Output("y",
           b.RaggedDot(rows, b.Parameter("wi", {4, 32, 48}, kBFloat16), sizes));
  EXPECT_THAT(WeightFormsOf(*std::move(b).Finish()),
              UnorderedElementsAre(Pair("wi", WeightForm{1, 1})));
}

TEST(WeightFormsTest, ProgramsMustAgree) {
  WeightForms weights = {{"a", {0, 1}}, {"b", {0, 1}}, {"c", {0, 1}}};
  MergeWeightForms({{"b", {0, 1}}, {"c", {0, 2}}, {"d", {1, 1}}}, weights);
  MergeWeightForms({{"c", {0, 1}}}, weights);
  EXPECT_THAT(weights, UnorderedElementsAre(Pair("a", WeightForm{0, 1}),
                                            Pair("b", WeightForm{0, 1}),
                                            Pair("c", kRowMajor),
                                            Pair("d", WeightForm{1, 1})));
}

TEST(WeightFormsTest, OnlyTheCpuTakesPanelsOfFloats) {
  const Executor executor(Products("bm,mn->bn"), Backend::kCuda);
  EXPECT_THAT(
      executor.weight_forms(),
      UnorderedElementsAre(Pair("once", kRowMajor), Pair("again", kRowMajor),
                           Pair("wide", kWide)));
}

TEST(WeightFormsTest, APanelWhereRowsAreWantedIsAnError) {
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
  EXPECT_THAT(
      run("bm,mn->nb", Tensor::Panels(kBFloat16, {32, 32}, 32, 2048)).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("parameter 'again': expected no panels, got "
                         "panels of 32 rows")));
  EXPECT_THAT(
      run("bm,mn->bn", Tensor::Panels(kBFloat16, {32, 32}, 16, 2048)).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("expected panels of other rows, got panels of "
                         "16 rows")));
}

// Looks up ids in a table, and multiplies the rows by the table.
Program TableProducts(const std::string& equation,
                      ElementType type = ElementType::kInt8) {
  Builder b("table");
  const ValueId table = b.Parameter("table", {48, 32}, type);
  const ValueId rows = b.Embedding(
      table, b.Input("ids", {ElementType::kInt32, {Dim::Symbol("N")}}));
  b.Output("y", equation.empty() ? rows : b.Einsum(equation, rows, table));
  return *std::move(b).Finish();
}

// A table for lookups and products, such as a tied embedding, is in panels; a
// table for lookups alone is row-major.
TEST(WeightFormsTest, WhatIsLookedUpLiesInPanelsIfItIsMultipliedByToo) {
  const auto type = ElementType::kFloat32;
  const WeightForm looked_up{0, 1, true, type, true};
  EXPECT_FALSE(looked_up.in_panels());
  const Executor looks_up(TableProducts("", type));
  const Executor both(TableProducts("nm,vm->nv", type));
  EXPECT_THAT(looks_up.weight_forms(),
              UnorderedElementsAre(Pair("table", looked_up)));
  const WeightForm panels{0, 1, true, type};
  EXPECT_THAT(both.weight_forms(), UnorderedElementsAre(Pair("table", panels)));
  WeightForms merged = looks_up.weight_forms();
  MergeWeightForms(looks_up.weight_forms(), merged);
  EXPECT_THAT(merged, UnorderedElementsAre(Pair("table", looked_up)));
  MergeWeightForms(both.weight_forms(), merged);
  EXPECT_THAT(merged, UnorderedElementsAre(Pair("table", panels)));
  MergeWeightForms(looks_up.weight_forms(), merged);
  EXPECT_THAT(merged, UnorderedElementsAre(Pair("table", panels)));
  const Tensor table = RandomTensor({48, 32}, 1);
  const TensorMap packed = {{"table", InPanels(table, 1, 32, true)}};
  const TensorMap inputs = {{"ids", Tensor::Ints({2}, {3, 39})}};
  for (const Executor* const executor : {&looks_up, &both}) {
    ASSERT_OK_AND_ASSIGN(const auto expected,
                         executor->Run(inputs, {{"table", table}}));
    ASSERT_OK_AND_ASSIGN(const auto y, executor->Run(inputs, packed));
    EXPECT_TRUE(TensorEqual(y[0], expected[0]));
  }
}

TEST(WeightFormsTest, WeightsOfInt8MayBeColumnsAndBeLookedUp) {
  const auto panels =
      UnorderedElementsAre(Pair("table", WeightForm{0, 1, true, kInt8}));
  EXPECT_THAT(WeightFormsOf(TableProducts("nm,vm->nv")), panels);
  EXPECT_THAT(
      Executor(TableProducts("nm,vm->nv"), Backend::kCuda).weight_forms(),
      panels);
}

TEST(WeightFormsTest, FloatsAreRoundedToInt8WhereTheProgramSaysSo) {
  const Executor executor(TableProducts("nm,vm->nv"));
  ASSERT_OK(executor.status());
  const Tensor floats = RandomTensor({48, 32}, 1);
  const TensorMap inputs = {{"ids", Tensor::Ints({2}, {3, 39})}};
  ASSERT_OK_AND_ASSIGN(const Tensor int8,
                       RoundToInt8(floats, WeightForm{0, 1, true, kInt8}));
  EXPECT_EQ(int8.dims(), floats.dims());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                       executor.Run(inputs, {{"table", int8}}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> same,
                       executor.Run(inputs, {{"table", floats}}));
  EXPECT_TRUE(TensorEqual(y[0], same[0]));
  // The product of two rounded rows is close to that of the rows.
  float exact = 0.0f;
  for (int64_t i = 0; i < 32; ++i) {
    exact += floats.f32()[3 * 32 + i] * floats.f32()[3 * 32 + i];
  }
  EXPECT_NEAR(y[0].f32()[3], exact, 0.02f * exact);
}

TEST(WeightFormsTest, OtherUsesOfInt8AreErrors) {
  // Not a matrix product with the table as it is stored.
  const Executor twice(TableProducts("nm,vm->vn"));
  EXPECT_THAT(twice.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("parameter 'table'")));
  const Executor reference(TableProducts("nm,vm->nv"), Backend::kReference);
  EXPECT_THAT(reference.status(),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("'reference' takes no weights")));
  const Executor executor(TableProducts("nm,vm->nv"));
  const TensorMap inputs = {{"ids", Tensor::Ints({2}, {3, 39})}};
  // Panels of the same size, but not transposed.
  ASSERT_OK_AND_ASSIGN(
      const Tensor wrong,
      RoundToInt8(RandomTensor({48, 32}, 1), WeightForm{0, 1, false, kInt8}));
  EXPECT_THAT(executor.Run(inputs, {{"table", wrong}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected panels of other rows")));
  EXPECT_THAT(
      executor.Run(inputs, {{"table", Tensor(kInt8, {48, 32})}}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("got panels of 0 rows")));
}

TEST(WeightFormsTest, OnlyParametersAreOfInt8) {
  Builder b("input");
  b.Input("x", {kInt8, {4}});
  EXPECT_THAT(b.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("i8 of parameters only")));
}

}  // namespace
}  // namespace gshard
