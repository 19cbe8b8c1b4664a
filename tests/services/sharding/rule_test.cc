#include "services/sharding/rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/graph/builder.h"
#include "services/graph/op.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MakeRuleTest, LettersAreFactors) {
  const OpRule rule = MakeRule("ab,bC->aC");
  ASSERT_EQ(rule.factors.size(), 3u);
  EXPECT_THAT(rule.operands[0], ElementsAre(DimFactors{0}, DimFactors{1}));
  EXPECT_THAT(rule.operands[1], ElementsAre(DimFactors{1}, DimFactors{2}));
  EXPECT_THAT(rule.results[0], ElementsAre(DimFactors{0}, DimFactors{2}));
  EXPECT_FALSE(rule.factors[0].whole);
  EXPECT_TRUE(rule.factors[2].whole);
  EXPECT_FALSE(rule.ragged);
}

TEST(MakeRuleTest, ParenthesesAreRaggedRowsAndNothingIsAScalar) {
  const OpRule rule = MakeRule("(et)m,,e->(et)m");
  EXPECT_TRUE(rule.ragged);
  EXPECT_THAT(rule.operands[0], ElementsAre(DimFactors{0, 1}, DimFactors{2}));
  EXPECT_THAT(rule.operands[1], IsEmpty());
  EXPECT_THAT(rule.operands[2], ElementsAre(DimFactors{0}));
}

// The rule of the last node of a program.
OpRule LastRule(const Builder& b) {
  return RuleOf(b.program(), b.program().nodes.back());
}

TEST(RuleOfTest, ReshapeJoinsAndSplitsFactors) {
  Builder b("reshape");
  const Dim n = Dim::Symbol("N");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {n, 3, 4, 1, 5}});
  b.Reshape(x, {n * 3, 2, 2, 5});
  const OpRule rule = LastRule(b);
  // N and 3 become one dimension, 4 becomes two, 5 stays.
  EXPECT_EQ(rule.results[0][0].size(), 2u);
  EXPECT_EQ(rule.results[0][0][0], rule.operands[0][0][0]);
  EXPECT_EQ(rule.results[0][0][1], rule.operands[0][1][0]);
  EXPECT_THAT(rule.operands[0][2],
              ElementsAre(rule.results[0][1][0], rule.results[0][2][0]));
  EXPECT_TRUE(rule.factors[rule.operands[0][3][0]].whole);
  EXPECT_EQ(rule.operands[0][4], rule.results[0][3]);
}

TEST(RuleOfTest, ElementwiseOperandsHaveTheLastDimensions) {
  Builder b("add");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {2, 3}});
  b.Add(x, b.Parameter("w", {3}));
  const OpRule rule = LastRule(b);
  EXPECT_TRUE(rule.pass_through);
  EXPECT_EQ(rule.operands[1][0], rule.results[0][1]);
}

TEST(RuleOfTest, AnOperatorWithoutARuleIsWhole) {
  RegisterOps(
      {{.name = "ruleless",
        .infer =
            [](absl::Span<const ValueType> operands, const Attributes&) {
              return std::vector<ValueType>(operands.begin(), operands.end());
            },
        .kernel = [](KernelContext&) { return absl::OkStatus(); }}});
  Builder b("whole");
  b.AddOne("ruleless", {b.Parameter("w", {3, 2})});
  const OpRule rule = LastRule(b);
  for (const Factor& factor : rule.factors) EXPECT_TRUE(factor.whole);
  EXPECT_NE(rule.operands[0], rule.results[0]);
}

TEST(KeepsMultiplesTest, ElasticPartsMayHaveAnySize) {
  Builder b("relu");
  b.Relu(b.Input("x", {ElementType::kFloat32, {12, Dim::Symbol("L")}}));
  OpRule rule = LastRule(b);
  for (Factor& factor : rule.factors) factor.multiple = 3;
  const auto keeps = [&](int factor, int64_t parts) {
    return KeepsMultiples(b.program(), b.program().nodes.back(), rule, factor,
                          parts);
  };
  EXPECT_TRUE(keeps(0, 2));
  EXPECT_FALSE(keeps(0, 3));
  EXPECT_FALSE(keeps(0, /*parts=*/0));
  EXPECT_TRUE(keeps(1, /*parts=*/0));  // checked when the program runs
}

TEST(RegisterRuleTest, TheFirstStays) {
  const auto make = [](absl::string_view letters) {
    return [rule = MakeRule(letters)](const Program&, const Node&) {
      return rule;
    };
  };
  RegisterRule("registered_twice", make("a->a"));
  RegisterRule("registered_twice", make("A->A"));
  const OpDef op{
      .name = "registered_twice", .infer = nullptr, .kernel = nullptr};
  const OpRule rule =
      RuleOf({}, {.op = &op, .inputs = {0}, .outputs = {1}, .attributes = {}});
  EXPECT_FALSE(rule.factors[0].whole);
}

}  // namespace
}  // namespace gshard
