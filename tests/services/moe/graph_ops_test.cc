#include "services/moe/graph_ops.h"

#include "absl/strings/match.h"
#include "tests/services/moe/moe_cases.h"

namespace gshard {
namespace {

class MoeOpTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(MoeOpTest, TextGivesItBack) { CheckText(GetParam()); }

TEST_P(MoeOpTest, KernelAgreesWithReference) {
  CheckAgainstReference(GetParam());
}

TEST_P(MoeOpTest, GradientsAgreeWithDifferences) { CheckGradients(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, MoeOpTest, ::testing::ValuesIn(MoeCases()));

TEST(MoeOpNamesTest, EveryOperatorHasACase) {
  CheckEveryOpHasACase(
      {"combine", "combine_gradient", "dispatch", "dispatch_gradient",
       "plan_dispatch", "top2_gating", "top2_gating_gradient"},
      MoeCases());
}

// The list above has all operators of services/moe.
TEST(MoeOpNamesTest, TheListIsComplete) {
  int of_this_room = 0;
  for (const std::string& name : OpNames()) {
    of_this_room += absl::StrContains(name, "gating") ||
                    absl::StrContains(name, "dispatch") ||
                    absl::StrContains(name, "combine");
  }
  EXPECT_EQ(of_this_room, 7);
}

using ::testing::HasSubstr;

TEST(GateTokensTest, RefusesWrongTypes) {
  RegisterMoeOps();
  Builder b("p");
  const ValueId logits = b.Input("logits", {ElementType::kFloat32, {6, 4}});
  const ValueId valid = b.Input("valid", {ElementType::kInt32, {5}});
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  GateTokens(b, logits, valid, key, GatingOptions(), 0);
  EXPECT_THAT(b.status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("operand 1 must be i32[6], got i32[5]")));
}

TEST(GateTokensTest, RefusesOptionsOutOfRange) {
  RegisterMoeOps();
  Builder b("p");
  const ValueId logits = b.Input("logits", {ElementType::kFloat32, {6, 4}});
  const ValueId valid = b.Input("valid", {ElementType::kInt32, {6}});
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  GatingOptions options;
  options.group_size = -1;
  GateTokens(b, logits, valid, key, options, 0);
  EXPECT_THAT(b.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("group_size")));
}

TEST(GateTokensTest, GradientNeedsLosses) {
  RegisterMoeOps();
  OpCase c = MoeCases()[0];
  GatingOptions options;
  options.losses = false;
  c.build = [options](Builder& b, const std::vector<ValueId>& x) {
    return std::vector<ValueId>{
        GateTokens(b, x[0], x[1], x[2], options, 3).weight};
  };
  const Tensor weights = RandomTensor({c.inputs[0].dim(0), 2}, 1);
  EXPECT_THAT(OpProgram(c).RunGradients({weights}, Backend::kCpu),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("the gradient needs 'losses'")));
}

}  // namespace
}  // namespace gshard
