#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "services/moe/graph_ops.h"
#include "tests/services/partition/lowering/partitioned_case.h"

namespace gshard {
namespace {

using ::testing::IsEmpty;

ValueType FloatType(Shape shape) {
  return {ElementType::kFloat32, std::move(shape)};
}

// Dropout of [5, 6, 7] and its gradient, annotated by `annotate`.
template <typename Function>
Builder DropoutCase(Function annotate) {
  Builder b("dropout");
  const ValueId x = b.Input("x", FloatType({5, 6, 7}));
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  annotate(b, x);
  const ValueId y = b.Dropout(x, key, 0.4, 3);
  b.Output("y", y);
  AddWeightedGradients(b, y, {x});
  return b;
}

TEST(DropoutLoweringTest, EveryDimensionDrawsTheSameNumbers) {
  for (const int64_t devices : {1, 2, 3, 4, 8}) {
    for (const int dim : {0, 1, 2}) {
      EXPECT_THAT(CheckCase(DropoutCase([&](Builder& b, ValueId x) {
                              Split(b, x, dim, "d");
                            }),
                            Line(devices), {{"key", KeyTensor(77)}}, 0),
                  IsEmpty());
    }
  }
}

TEST(DropoutLoweringTest, TwoAxes) {
  for (const int second : {1, 2}) {
    CheckCase(DropoutCase([&](Builder& b, ValueId x) {
                Split(b, x, 0, "x");
                Split(b, x, second, "y");
              }),
              Square(), {{"key", KeyTensor(77)}}, 0);
  }
  CheckCase(DropoutCase([](Builder& b, ValueId x) {
              Split(b, x, 1, "x");
              Split(b, x, 1, "y");
            }),
            Square(), {{"key", KeyTensor(78)}}, 0);
}

TEST(DropoutLoweringTest, SizesThatAreSymbols) {
  for (const int64_t devices : {1, 2, 4}) {
    Builder b("dropout");
    const ValueId x = b.Input("x", FloatType({Dim::Symbol("B"), 6}));
    const ValueId key = b.Input("key", {ElementType::kInt64, {}});
    Split(b, x, 0, "d");
    b.Output("y", b.Dropout(x, key, 0.4, 3));
    CheckCase(std::move(b), Line(devices),
              {{"x", RandomTensor({8, 6}, 5)}, {"key", KeyTensor(7)}}, 0);
  }
}

// Rows carry their own numbers, so only column numbers depend on the device.
TEST(DropoutLoweringTest, RowsSplitAlongTheirWidth) {
  for (const int64_t devices : {1, 2, 3, 4, 8}) {
    Builder b("dropout_rows");
    const ValueId x = b.Input("x", FloatType({5, 10}));
    const ValueId rows = b.Input("rows", {ElementType::kInt32, {5}});
    const ValueId key = b.Input("key", {ElementType::kInt64, {}});
    Split(b, x, 1, "d");
    const ValueId y = b.AddOne("dropout_rows", {x, rows, key},
                               {{"rate", 0.4}, {"salt", int64_t{2}}});
    b.Output("y", y);
    AddWeightedGradients(b, y, {x});
    EXPECT_THAT(CheckCase(std::move(b), Line(devices),
                          {{"rows", IntTensor({5}, {7, 2, 0, 9, 4})},
                           {"key", KeyTensor(77)}},
                          0),
                IsEmpty());
  }
}

// Dispatches tokens x [16, 6] to rows, multiplies them by the weights [4, 6, 5]
// of 4 experts, applies dropout, and combines.
template <typename Function>
Builder MoeCase(Function annotate) {
  RegisterMoeOps();
  Builder b("moe");
  const GatingOptions options = {
      .capacity = 2, .group_size = 2, .losses = false};
  const ValueId x = b.Input("x", FloatType({16, 6}));
  const ValueId valid = b.Input("valid", {ElementType::kInt32, {16}});
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  const GateValues gate = GateTokens(b, b.Input("logits", FloatType({16, 4})),
                                     valid, key, options, 1);
  const DispatchValues dispatched = DispatchTokens(b, x, gate, 4, options);
  const ValueId weights = b.Parameter("w", {4, 6, 5});
  annotate(b, x, dispatched.rows, weights);
  const ValueId products =
      b.RaggedDot(dispatched.rows, weights, dispatched.group_sizes);
  const ValueId h =
      b.AddOne("dropout_rows", {products, dispatched.row_source, key},
               {{"rate", 0.4}, {"salt", int64_t{2}}});
  const ValueId y = CombineRows(b, h, dispatched.row_source, gate.weight);
  b.Output("y", y);
  AddWeightedGradients(b, y, {x, weights});
  return b;
}

TEST(DropoutLoweringTest, RowsByTokenAndByExpert) {
  const TensorMap given = {
      {"valid", IntTensor({16}, std::vector<int32_t>(16, 1))},
      {"key", KeyTensor(77)}};
  for (const int64_t devices : {1, 2, 4, 8}) {
    // Numbers of rows split by token start at the device's first token.
    Program program;
    CheckCase(MoeCase([](Builder& b, ValueId x, ValueId, ValueId) {
                Split(b, x, 0, "d");
              }),
              Line(devices), given, 1e-5f, {}, &program);
    const auto operators = Operators(program, false);
    EXPECT_EQ(std::count(operators.begin(), operators.end(), "add_offset") > 0,
              devices > 1);
    CheckCase(MoeCase([](Builder& b, ValueId x, ValueId rows, ValueId) {
                Split(b, x, 0, "d");
                Split(b, rows, 0, "d");
              }),
              Line(devices), given, 1e-5f);
  }
  CheckCase(MoeCase([](Builder& b, ValueId x, ValueId, ValueId weights) {
              Split(b, x, 0, "x");
              Split(b, weights, 2, "y");
            }),
            Square(), given, 1e-5f);
}

}  // namespace
}  // namespace gshard
