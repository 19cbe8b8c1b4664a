// Tests how AddGradients follows a program's structure; op_test.cc tests the
// gradient of each operator.

#include "services/graph/gradient.h"

#include "services/graph/executor.h"
#include "services/graph/text.h"
#include "tests/services/graph/wrong_use.h"
#include "tests/testing/builder_ops.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(GradientTest, SumsOverUses) {
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {}});
  // The derivative of x * x + 3 x + x is 2 x + 4.
  const ValueId loss = b.Add(b.Add(b.Multiply(x, x), b.Scale(x, 3.0)), x);
  ASSERT_OK_AND_ASSIGN(const std::vector<ValueId> gradients,
                       AddGradients(b, loss, {x}));
  b.Output("dx", gradients[0]);
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> y,
      Executor(program).Run({{"x", Tensor::Scalar(5.0f)}}, {}));
  EXPECT_EQ(*y[0].f32(), 14.0f);
}

// A cast value's gradient is float32, rounded only where the program rounds.
TEST(GradientTest, IsRoundedOnlyByCastsFromBFloat16) {
  constexpr auto kLow = ElementType::kBFloat16;
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {2, 3}});
  const ValueId w = b.Parameter("w", {3, 3}, kLow);
  const ValueId low = b.Cast(x, kLow);
  const ValueId product = b.Einsum("ab,bc->ac", low, w);
  const ValueId sum = b.ReduceSum(product, {0, 1});
  // A second use of `low`: its gradient is rounded, the sum of both is not.
  const ValueId wide = b.AddOne("cast", {low}, {{"type", "f32"}});
  const ValueId loss = b.Add(sum, b.ReduceSum(Exp(b, wide), {0, 1}));
  ASSERT_OK_AND_ASSIGN(const std::vector<ValueId> gradients,
                       AddGradients(b, loss, {x, w, low, wide}));
  EXPECT_EQ(b.type(gradients[0]).ToString(), "f32[2, 3]");
  EXPECT_EQ(b.type(gradients[1]).ToString(), "f32[3, 3]");
  EXPECT_EQ(b.type(gradients[2]).ToString(), "f32[2, 3]");
  b.Output("dx", gradients[0]);
  b.Output("of_exp", gradients[3]);
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  const Tensor weights = Tensor::Floats({3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                       Executor(program).Run({{"x", RandomTensor({2, 3}, 1)}},
                                             {{"w", weights}}));
  for (int64_t i = 0; i < 6; ++i) {
    const float rows[] = {6, 15, 24};
    EXPECT_EQ(y[0].f32()[i], rows[i % 3] + ToFloat(ToBFloat16(y[1].f32()[i])));
  }
}

TEST(GradientTest, OfValuesInBetweenAndOfTheLoss) {
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {}});
  const ValueId middle = b.Scale(x, 3.0);
  const ValueId loss = b.Multiply(middle, middle);
  ASSERT_OK_AND_ASSIGN(const std::vector<ValueId> gradients,
                       AddGradients(b, loss, {middle, loss, x}));
  for (const ValueId gradient : gradients) {
    b.Output(std::to_string(gradient), gradient);
  }
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> y,
      Executor(program).Run({{"x", Tensor::Scalar(2.0f)}}, {}));
  EXPECT_EQ(*y[0].f32(), 12.0f);
  EXPECT_EQ(*y[1].f32(), 1.0f);
  EXPECT_EQ(*y[2].f32(), 36.0f);
}

TEST(GradientTest, NoneWhereTheLossDoesNotDepend) {
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {}});
  const ValueId other = b.Input("other", {kFloat, {3}});
  b.Relu(other);
  ASSERT_OK_AND_ASSIGN(const std::vector<ValueId> gradients,
                       AddGradients(b, b.Scale(x, 2.0), {other, x}));
  EXPECT_EQ(gradients[0], kNoValue);
  EXPECT_NE(gradients[1], kNoValue);
}

TEST(GradientTest, LossMustBeAScalar) {
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {1}});
  EXPECT_THAT(AddGradients(b, x, {x}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("loss must be f32[], got f32[1]")));
}

TEST(GradientTest, NamesTheOperatorWithoutGradient) {
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {2}});
  const ValueId y = b.AddOne("relu_gradient", {x, x});
  EXPECT_THAT(AddGradients(b, b.ReduceSum(y, {0}), {x}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("'relu_gradient' has no gradient")));
}

// An operator without a gradient is no error unless one must pass through it.
TEST(GradientTest, OperatorsOffTheWayNeedNoGradient) {
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {2}});
  const ValueId w = b.Input("w", {kFloat, {2}});
  const ValueId y = b.AddOne("relu_gradient", {x, x});
  EXPECT_OK(AddGradients(b, b.ReduceSum(b.Multiply(y, w), {0}), {w}));
}

TEST(GradientTest, ResultsThatAreKeptHaveNone) {
  const auto gradient = [](const char* op, int result) {
    Builder b("p");
    const ValueId x = b.Input("x", {kFloat, {2, 3}});
    const ValueId s = b.Input("s", {kFloat, {3}});
    const ValueId labels = b.Input("l", {ElementType::kInt32, {2}});
    std::vector<ValueId> y;
    if (op == std::string("rms_norm")) {
      y = b.AddNode(op, {x, s}, {{"epsilon", 1e-6}});
    } else if (op == std::string("layer_norm")) {
      y = b.AddNode(op, {x, s, s}, {{"epsilon", 1e-6}});
    } else {
      y = b.AddNode(op, {x, labels}, {{"smoothing", 0.0}, {"z_loss", 0.0}});
    }
    return AddGradients(b, b.ReduceSum(y[result], {0}), {x}).status();
  };
  for (const auto& [op, result] :
       std::vector<std::pair<const char*, int>>{{"rms_norm", 1},
                                                {"layer_norm", 1},
                                                {"layer_norm", 2},
                                                {"cross_entropy", 1}}) {
    EXPECT_THAT(gradient(op, result),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(op)));
  }
}

TEST(GradientTest, DoesNotGoOnAfterAnError) {
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {}});
  b.AddOne("frobnicate", {});
  EXPECT_THAT(AddGradients(b, x, {x}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("frobnicate")));
}

// The same program gives the same gradients, as text.
TEST(GradientTest, IsAFunctionOfTheProgram) {
  const auto text = [] {
    Builder b("p");
    const ValueId x = b.Input("x", {kFloat, {2, 3}});
    const ValueId w = b.Parameter("w", {3, 3});
    ValueId y = x;
    for (int i = 0; i < 3; ++i) y = b.Add(y, b.Einsum("bm,mn->bn", y, w));
    const auto gradients =
        AddGradients(b, b.ReduceSum(b.Multiply(y, y), {0, 1}), {x, w});
    b.Output("dx", (*gradients)[0]);
    b.Output("dw", (*gradients)[1]);
    return ProgramToText(*std::move(b).Finish());
  };
  EXPECT_EQ(text(), text());
}

}  // namespace
}  // namespace gshard
