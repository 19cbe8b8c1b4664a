#include "services/graph/builder.h"

#include <functional>
#include <string>
#include <vector>

#include "tests/services/graph/wrong_use.h"
#include "tests/testing/builder_ops.h"
#include "tests/testing/find_output.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInt = ElementType::kInt32;

TEST(BuilderTest, BuildsAProgram) {
  Builder b("ffn");
  const ValueId x = b.Input("x", {kFloat, {B, 8}});
  const ValueId wi = b.Parameter("wi", {8, 16});
  const ValueId h = b.Relu(b.Einsum("bm,mh->bh", x, wi));
  b.Output("h", h);
  EXPECT_EQ(b.type(h).ToString(), "f32[B, 16]");
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  EXPECT_EQ(program.nodes.size(), 4);
  EXPECT_EQ(FindOutput(program, "h"), h);
  EXPECT_EQ(FindOutput(program, "x"), kNoValue);
  EXPECT_EQ(program.producer(h).op->name, "relu");
  EXPECT_EQ(program.NodesOf("parameter").size(), 1);
}

TEST(BuilderTest, AParameterIsOneValue) {
  Builder b("p");
  EXPECT_EQ(b.Parameter("w", {3}), b.Parameter("w", {3}));
  EXPECT_OK(b.status());
  b.Parameter("w", {4});
  EXPECT_THAT(b.status(),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("parameter 'w' exists already as f32[3]")));
}

TEST(BuilderTest, CastsOnlyWhatHasAnotherType) {
  constexpr auto kLow = ElementType::kBFloat16;
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {B}});
  EXPECT_EQ(b.Cast(x, kFloat), x);
  const ValueId low = b.Cast(x, kLow);
  EXPECT_EQ(b.type(low).ToString(), "bf16[B]");
  // bf16 to f32 and back changes nothing; f32 to bf16 and back rounds.
  const ValueId wide = b.Cast(low, kFloat);
  EXPECT_EQ(b.Cast(wide, kLow), low);
  EXPECT_NE(wide, x);
  EXPECT_EQ(b.type(b.Parameter("w", {3}, kLow)).ToString(), "bf16[3]");
  EXPECT_OK(b.status());
}

// A "type" other than f32 and bf16, as in a foreign program, is refused.
TEST(BuilderTest, OnlyFloatsCanBeCast) {
  const auto cast = [](const char* type) {
    Builder b("p");
    const ValueId x = b.Input("x", {kFloat, {}});
    b.AddOne("cast", {x}, {{"type", type}});
    return b.status();
  };
  EXPECT_OK(cast("bf16"));
  EXPECT_THAT(cast("i32"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'type' must be f32 or bf16, got i32")));
  Builder b("p");
  b.Cast(b.Input("x", {kInt, {}}), kFloat);
  EXPECT_THAT(b.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("must be f32 or bf16")));
  Builder mixed("p");
  const ValueId x = mixed.Input("x", {kFloat, {3, 3}});
  mixed.Einsum("ab,bc->ac", x, mixed.Cast(x, ElementType::kBFloat16));
  EXPECT_THAT(mixed.status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("operand 1 must be f32 as operand 0")));
}

TEST(BuilderTest, TheFirstErrorStays) {
  Builder b("p");
  const ValueId bad = b.AddOne("frobnicate", {});
  EXPECT_EQ(bad, kNoValue);
  EXPECT_EQ(b.Relu(bad), kNoValue);
  EXPECT_EQ(b.type(bad).ToString(), "f32[]");
  EXPECT_EQ(b.Input("x", {kFloat, {}}), kNoValue);
  b.Output("y", bad);
  b.Annotate(bad, "split(0, expert)");
  EXPECT_THAT(std::move(b).Finish(),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no operator 'frobnicate'")));
}

TEST(BuilderTest, NamesOfInputsAndOutputsAreUnique) {
  Builder inputs("p");
  inputs.Input("x", {kFloat, {}});
  inputs.Input("x", {kFloat, {}});
  EXPECT_THAT(inputs.status(), StatusIs(absl::StatusCode::kAlreadyExists,
                                        HasSubstr("input 'x' exists")));
  Builder outputs("p");
  const ValueId x = outputs.Input("x", {kFloat, {}});
  outputs.Output("y", x);
  outputs.Output("y", x);
  EXPECT_THAT(outputs.status(), StatusIs(absl::StatusCode::kAlreadyExists,
                                         HasSubstr("output 'y' exists")));
  Builder nothing("p");
  nothing.Output("y", kNoValue);
  EXPECT_THAT(nothing.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("'y' is not a value")));
}

TEST(BuilderTest, FreshSymbolsAreNotInUse) {
  Builder b("p");
  b.Input("x", {kFloat, {Dim::Symbol("R0"), Dim::Symbol("R1") * 2}});
  EXPECT_EQ(b.FreshSymbol("R").ToString(), "R2");
  EXPECT_EQ(b.FreshSymbol("R").ToString(), "R3");
}

const std::vector<WrongUse>& WrongBuilds() {
  static const auto& uses = *new std::vector<WrongUse>{
      {"add: expected 2 operands, got 1",
       [](Builder& b) { b.AddOne("add", {F(b, {3})}); }},
      {"add: operand 1 must be f32, got i32[3]",
       [](Builder& b) { b.Add(F(b, {3}), I(b, {3})); }},
      {"add: operand 1 must have the shape of operand 0, f32[2, 3], or its "
       "last dimensions, got f32[2]",
       [](Builder& b) {
         b.Add(F(b, {2, 3}), F(b, {2}));
       }},
      {"relu: operand 0 must be f32 or bf16, got i32[2]",
       [](Builder& b) { b.Relu(I(b, {2})); }},
      {"scale: attribute 'factor' must be a number, got none",
       [](Builder& b) { b.AddOne("scale", {F(b, {2})}); }},
      {"scale: attribute 'factor' must be a number, got another kind",
       [](Builder& b) {
         b.AddOne("scale", {F(b, {2})}, {{"factor", int64_t{2}}});
       }},
      {"dropout: operand 1 must be i64[], got i32[]",
       [](Builder& b) { b.Dropout(F(b, {2}), I(b, {}), 0.5, 0); }},
      {"dropout: 'rate' must lie in [0, 1), got 1",
       [](Builder& b) {
         b.Dropout(F(b, {2}), b.Input("key", {ElementType::kInt64, {}}), 1.0,
                   0);
       }},
      // 1 as a float.
      {"dropout: 'rate' must lie in [0, 1), got 1",
       [](Builder& b) {
         b.Dropout(F(b, {2}), b.Input("key", {ElementType::kInt64, {}}),
                   0.99999999, 0);
       }},
      {"reshape: shape must have as many elements as f32[B, 6], got [B, 5]",
       [](Builder& b) {
         b.Reshape(F(b, {B, 6}), {B, 5});
       }},
      {"transpose: 'permutation' must name each dimension of f32[B, 6] once",
       [](Builder& b) {
         b.Transpose(F(b, {B, 6}), {0, 0});
       }},
      {"reduce_sum: 'dims' must ascend within [0, 2), got 2",
       [](Builder& b) {
         b.ReduceSum(F(b, {B, 6}), {0, 2});
       }},
      {"concat: operand 1 must have shape",
       [](Builder& b) {
         Concat(b, {F(b, {2, 6}), F(b, {2, 5})}, 0);
       }},
      {"concat: dimension 0 of the operands together is beyond 2^63",
       [](Builder& b) {
         const Dim big(int64_t{1} << 40);
         Concat(b, {F(b, {big * big}), F(b, {1})}, 0);
       }},
      {"concat: 'dim' must lie in [0, 1), got 1",
       [](Builder& b) { Concat(b, {F(b, {2})}, 1); }},
      {"slice: 'begin' and 'end' must lie within a static dimension of "
       "f32[B, 6], got [0, 1) of dimension 0",
       [](Builder& b) {
         b.Slice(F(b, {B, 6}), 0, 0, 1);
       }},
      {"einsum: 'm' is 3 in operand 0 and 4 in operand 1",
       [](Builder& b) {
         b.Einsum("bm,mh->bh", F(b, {B, 3}), F(b, {4, 5}));
       }},
      {"einsum: operand 1 must have 2 dimensions, got f32[4]",
       [](Builder& b) {
         b.Einsum("bm,mh->bh", F(b, {B, 4}), F(b, {4}));
       }},
      {"einsum: ",
       [](Builder& b) {
         b.Einsum("bm;mh", F(b, {B, 4}), F(b, {4, 5}));
       }},
      {"softmax: operand 0 must have at least 1 dimension",
       [](Builder& b) { Softmax(b, F(b, {})); }},
      {"rms_norm: operand 1 must have shape [6], got f32[5]",
       [](Builder& b) {
         b.RmsNorm(F(b, {B, 6}), F(b, {5}), 1e-6);
       }},
      {"embedding: operand 1 must be i32, got f32[2]",
       [](Builder& b) {
         b.Embedding(F(b, {9, 6}), F(b, {2}));
       }},
      {"sinusoidal_positions: 'width' must be at least 1, got 0",
       [](Builder& b) { b.SinusoidalPositions(I(b, {2}), 0); }},
      {"attention: operand 1 must have shape [B, 4, 2, 3], got f32[B, 4, 2, 5]",
       [](Builder& b) {
         const ValueId q = F(b, {B, 3, 2, 3});
         const ValueId k = F(b, {B, 4, 2, 5});
         b.Attention(q, k, k, I(b, {B}), kNoValue, {});
       }},
      {"attention: operand 4 is not a value",
       [](Builder& b) {
         const ValueId q = F(b, {B, 3, 2, 3});
         b.Attention(q, q, q, I(b, {B}), kNoValue, {.dropout_rate = 0.1});
       }},
      {"attention: 'dropout_rate' must lie in [0, 1), got 1",
       [](Builder& b) {
         const ValueId q = F(b, {B, 3, 2, 3});
         const ValueId key = b.Input("key", {ElementType::kInt64, {}});
         b.Attention(q, q, q, I(b, {B}), key, {.dropout_rate = 0.99999999});
       }},
      {"cross_entropy: operand 1 must have shape [B], got i32[3]",
       [](Builder& b) {
         b.CrossEntropy(F(b, {B, 9}), I(b, {3}), 0, 0);
       }},
      {"ragged_dot: operand 2 must have shape [4], got i32[5]",
       [](Builder& b) {
         const ValueId rows = F(b, {B, 3});
         const ValueId weights = F(b, {4, 3, 2});
         b.RaggedDot(rows, weights, I(b, {5}));
       }},
      {"broadcast: 'shape' without 'dims' must be the operand's, f32[3], got "
       "f32[4]",
       [](Builder& b) {
         b.AddOne("broadcast", {F(b, {3})},
                  {{"shape", Shape{2, 4}}, {"dims", std::vector<int64_t>{0}}});
       }},
      {"cross_entropy_gradient: operand 2 must be f32, got i32[B]",
       [](Builder& b) {
         const ValueId logits = F(b, {B, 3});
         const ValueId labels = I(b, {B});
         b.AddOne("cross_entropy_gradient", {logits, labels, labels, labels},
                  {{"smoothing", 0.0}, {"z_loss", 0.0}});
       }},
      {"rms_norm_gradient: operand 2 must be f32, got i32[B]",
       [](Builder& b) {
         const ValueId x = F(b, {B, 3});
         const ValueId scale = F(b, {3});
         b.AddNode("rms_norm_gradient", {x, scale, I(b, {B}), x}, {});
       }},
  };
  return uses;
}

TEST(BuilderTest, SaysWhatIsWrong) {
  for (const WrongUse& wrong : WrongBuilds()) {
    Builder b("p");
    wrong.use(b);
    EXPECT_THAT(b.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr(wrong.message)));
  }
}

TEST(BuilderTest, ErrorsNameTheProgramOrTheOperand) {
  Builder b("model.train");
  b.AddOne("add", {99, 0});
  EXPECT_THAT(b.status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("add: operand 0 is not a value of program "
                                 "'model.train'")));
  Builder c("model.train");
  c.Relu(I(c, {2}));
  EXPECT_THAT(c.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("program 'model.train', relu: ")));
}

TEST(PrunedTest, DropsWhatNoOutputNeeds) {
  Builder b("p");
  const ValueId unused = b.Input("unused", {kFloat, {2}});
  b.Relu(unused);
  const ValueId x = b.Input("x", {kFloat, {2}});
  const ValueId y = b.Relu(x);
  b.Annotate(y, "split(0, expert)");
  b.Output("y", y);
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  const Program pruned = Pruned(program);
  EXPECT_EQ(pruned.name, "p");
  EXPECT_EQ(pruned.values.size(), 2);
  ASSERT_EQ(pruned.nodes.size(), 2);
  EXPECT_THAT(pruned.nodes[1].inputs, ElementsAre(0));
  EXPECT_EQ(FindOutput(pruned, "y"), 1);
  EXPECT_EQ(pruned.producer(1).op->name, "relu");
  EXPECT_EQ(pruned.values[1].sharding, "split(0, expert)");
}

}  // namespace
}  // namespace gshard
