// Tests operators with windows, paddings and dynamic positions on examples
// worked by hand, and what they refuse.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "services/graph/builder.h"
#include "services/graph/executor.h"
#include "tests/services/graph/wrong_use.h"
#include "tests/testing/builder_ops.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using Ints = std::vector<int64_t>;

// The result of one operator on `inputs`.
absl::StatusOr<Tensor> RunOp(absl::string_view op,
                             const std::vector<Tensor>& inputs,
                             Attributes attributes) {
  Builder b("one");
  TensorMap feeds;
  std::vector<ValueId> values;
  for (const Tensor& input : inputs) {
    const std::string name = absl::StrCat("x", values.size());
    values.push_back(b.Input(
        name, {input.type(), Shape(input.dims().begin(), input.dims().end())}));
    feeds[name] = input;
  }
  b.Output("y", b.AddOne(op, values, std::move(attributes)));
  auto program = std::move(b).Finish();
  if (!program.ok()) return program.status();
  auto results = Executor(*std::move(program)).Run(feeds, {}, {});
  if (!results.ok()) return results.status();
  return (*results)[0];
}

Attributes Tail(double value) {
  return {{"dim", int64_t{0}}, {"value", value}};
}

TEST(WindowOpsTest, ConvolutionByHand) {
  Builder b("conv");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {1, 4, 1}});
  const ValueId k = b.Input("k", {ElementType::kFloat32, {2, 1, 1}});
  b.Output("plain", Convolution(b, x, k));
  b.Output("strided", Convolution(b, x, k,
                                  {.stride = {2},
                                   .pad_low = {1},
                                   .pad_high = {1},
                                   .window_dilation = {2}}));
  b.Output("between", Convolution(b, x, k, {.base_dilation = {2}}));
  ASSERT_OK_AND_ASSIGN(Program program, std::move(b).Finish());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                       Executor(std::move(program))
                           .Run({{"x", Tensor::Floats({1, 4, 1}, {1, 2, 3, 4})},
                                 {"k", Tensor::Floats({2, 1, 1}, {10, 1})}},
                                {}, {}));
  EXPECT_TRUE(TensorEqual(y[0], Tensor::Floats({1, 3, 1}, {12, 23, 34})));
  // Over 0 1 2 3 4 0, with stride and window dilation 2.
  EXPECT_TRUE(TensorEqual(y[1], Tensor::Floats({1, 2, 1}, {2, 24})));
  // Over 1 0 2 0 3 0 4.
  EXPECT_TRUE(
      TensorEqual(y[2], Tensor::Floats({1, 6, 1}, {10, 2, 20, 3, 30, 4})));
}

TEST(WindowOpsTest, MasksHideWhateverWasThere) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ASSERT_OK_AND_ASSIGN(
      const Tensor masked,
      RunOp("mask_tail", {Tensor::Floats({3}, {1, nan, nan}), KeyTensor(1)},
            Tail(0.0)));
  EXPECT_TRUE(TensorEqual(masked, Tensor::Floats({3}, {1, 0, 0})));
  ASSERT_OK_AND_ASSIGN(
      const Tensor ids,
      RunOp("mask_tail", {Tensor::Ints({3}, {7, 8, 9}), KeyTensor(2)},
            Tail(-1.0)));
  EXPECT_TRUE(TensorEqual(ids, Tensor::Ints({3}, {7, 8, -1})));
}

TEST(WindowOpsTest, ReduceMaxKeepsNanAndOfNothingIsMinusInfinity) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  ASSERT_OK_AND_ASSIGN(
      const Tensor largest,
      RunOp("reduce_max",
            {Tensor::Floats({3, 2}, {1, nan, nan, 2, -3, -infinity})},
            {{"dims", Ints{1}}}));
  EXPECT_NE(largest.f32()[0], largest.f32()[0]);
  EXPECT_NE(largest.f32()[1], largest.f32()[1]);
  EXPECT_EQ(largest.f32()[2], -3.0f);
  ASSERT_OK_AND_ASSIGN(
      const Tensor nothing,
      RunOp("reduce_max", {Tensor::Floats({2, 0}, {})}, {{"dims", Ints{1}}}));
  EXPECT_TRUE(
      TensorEqual(nothing, Tensor::Floats({2}, {-infinity, -infinity})));
}

TEST(WindowOpsTest, DynamicSlicesMustLieWithin) {
  const Attributes two = {{"dim", int64_t{0}}, {"size", int64_t{2}}};
  const Tensor x = Tensor::Ints({3}, {4, 5, 6});
  ASSERT_OK_AND_ASSIGN(const Tensor last,
                       RunOp("dynamic_slice", {x, KeyTensor(1)}, two));
  EXPECT_TRUE(TensorEqual(last, Tensor::Ints({2}, {5, 6})));
  for (const int64_t start :
       {int64_t{-1}, int64_t{2}, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(
        RunOp("dynamic_slice", {x, KeyTensor(start)}, two),
        StatusIs(absl::StatusCode::kOutOfRange,
                 HasSubstr(absl::StrCat("must lie in [0, 1], got ", start))));
  }
}

ValueId Key(Builder& b) { return b.Input("key", {ElementType::kInt64, {}}); }

void Convolve(Builder& b, Shape x, Shape kernel,
              ConvolutionAttributes attributes = {}) {
  Convolution(b, F(b, std::move(x)), F(b, std::move(kernel)),
              std::move(attributes));
}

const std::vector<WrongUse>& WrongUses() {
  static const auto& uses = *new std::vector<WrongUse>{
      {"operand 0 must have 1 or 2 spatial dimensions between batch and "
       "channels, got f32[2, 3]",
       [](Builder& b) {
         Convolve(b, {2, 3}, {3, 4});
       }},
      {"operand 1 must have 3 dimensions, got f32[3, 4]",
       [](Builder& b) {
         Convolve(b, {B, 5, 3}, {3, 4});
       }},
      {"operand 1 must have shape [3, 2, 4], got f32[3, 5, 4]",
       [](Builder& b) {
         Convolve(b, {B, 5, 2}, {3, 5, 4});
       }},
      {"dimension 1 is spatial and must be static, got f32[2, B, 3]",
       [](Builder& b) {
         Convolve(b, {2, B, 3}, {1, 3, 4});
       }},
      {"dimension 0 is spatial and must be static, got f32[B, 3, 4]",
       [](Builder& b) {
         Convolve(b, {2, 5, 3}, {B, 3, 4});
       }},
      {"'stride' must have one entry per spatial dimension, 1, got 2",
       [](Builder& b) {
         Convolve(b, {B, 5, 3}, {1, 3, 4}, {.stride = {1, 1}});
       }},
      {"spatial dimension 1: 'stride' must lie in [1, 1048576], got 0",
       [](Builder& b) {
         Convolve(b, {B, 5, 5, 3}, {1, 1, 3, 4}, {.stride = {1, 0}});
       }},
      {"spatial dimension 0: 'window' must lie in [1, 1099511627776], got 0",
       [](Builder& b) {
         Convolve(b, {B, 5, 3}, {0, 3, 4});
       }},
      {"'pad_low' must lie in [-1099511627776, 1099511627776], got ",
       [](Builder& b) {
         Convolve(b, {B, 5, 3}, {1, 3, 4},
                  {.pad_low = {std::numeric_limits<int64_t>::max()}});
       }},
      {"'size of the result' must lie in [0, 1099511627776], got ",
       [](Builder& b) {
         Convolve(b, {B, int64_t{1} << 30, 3}, {1, 3, 4},
                  {.base_dilation = {1 << 20}});
       }},
      {"operand 1 must have shape [B, 4, 7], got f32[B, 5, 7]",
       [](Builder& b) {
         b.AddOne("convolution_kernel_gradient",
                  {F(b, {B, 5, 3}), F(b, {B, 5, 7})},
                  {{"stride", Ints{1}},
                   {"pad_low", Ints{0}},
                   {"pad_high", Ints{0}},
                   {"base_dilation", Ints{1}},
                   {"window_dilation", Ints{1}},
                   {"kernel", Ints{2}}});
       }},
      {"'low' must have one entry per dimension of f32[2, 3], got 1",
       [](Builder& b) {
         b.Pad(F(b, {2, 3}), {1}, {1, 1});
       }},
      {"dimension 0 is padded and must be static, got f32[B, 3]",
       [](Builder& b) {
         b.Pad(F(b, {B, 3}), {1, 0}, {0, 0});
       }},
      {"must leave a size for dimension 1 of f32[2, 3], got -2, -2 and 0",
       [](Builder& b) {
         b.Pad(F(b, {2, 3}), {0, -2}, {0, -2});
       }},
      {"'value' must be a number that i32 holds, got 0.5",
       [](Builder& b) { b.Pad(I(b, {2}), {1}, {1}, 0.5); }},
      {"'value' must be a number that i32 holds, got 2.14748e+09",
       [](Builder& b) { b.Pad(I(b, {2}), {1}, {1}, 0x1p31); }},
      {"'dim' must lie in [0, 1), got 1",
       [](Builder& b) {
         b.AddOne("mask_tail", {F(b, {2}), Key(b)},
                  {{"dim", int64_t{1}}, {"value", 0.0}});
       }},
      {"operand 1 must be i64[], got i32[]",
       [](Builder& b) {
         b.AddOne("mask_tail", {F(b, {2}), I(b, {})},
                  {{"dim", int64_t{0}}, {"value", 0.0}});
       }},
      {"'dims' must ascend within [0, 2), got 0",
       [](Builder& b) {
         b.Reverse(F(b, {2, 3}), {1, 0});
       }},
      {"'size' must lie in [0, 3] for dimension 1 of f32[2, 3], got 4",
       [](Builder& b) {
         b.AddOne("dynamic_slice", {F(b, {2, 3}), Key(b)},
                  {{"dim", int64_t{1}}, {"size", int64_t{4}}});
       }},
      {"operand 0 must be f32, got i32[2]",
       [](Builder& b) { b.ReduceMax(I(b, {2}), {0}); }},
      {"operand 2 must have shape [2], got f32[3]",
       [](Builder& b) {
         b.AddOne("reduce_max_gradient", {F(b, {2, 3}), F(b, {2}), F(b, {3})},
                  {{"dims", Ints{1}}});
       }},
      {"operand 1 must have the shape of operand 0",
       [](Builder& b) {
         b.Divide(F(b, {2, 3}), F(b, {2}));
       }},
  };
  return uses;
}

TEST(WindowOpsTest, SayWhatIsWrong) {
  for (const WrongUse& wrong : WrongUses()) {
    Builder b("wrong");
    wrong.use(b);
    EXPECT_THAT(b.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr(wrong.message)));
  }
}

}  // namespace
}  // namespace gshard
