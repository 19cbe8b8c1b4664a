// The checker of random_partition_test.cc detects wrong rules and lowerings:
// operators that have one fail, twins with the right ones pass.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/base/status_macros.h"
#include "services/graph/op.h"
#include "services/ops/reduce.h"
#include "services/partition/lowering.h"
#include "services/sharding/rule.h"
#include "tests/services/partition/random/random_case.h"

namespace gshard {
namespace {

using ::testing::Gt;

constexpr int kCases = 400;

absl::Status Sum(KernelContext& c) {
  c.results[0] = ReduceSum(c.operands[0], {0});
  return absl::OkStatus();
}

// y[i] = x[0] + ... + x[i]: dimension 0 must not be split.
absl::Status RunningSum(KernelContext& c) {
  Tensor x = c.operands[0].Clone();
  const int64_t width = x.dim(1);
  for (int64_t i = width; i < x.size(); ++i) x.f32()[i] += x.f32()[i - width];
  c.results[0] = std::move(x);
  return absl::OkStatus();
}

void Register(const std::string& name, absl::Status (*kernel)(KernelContext&),
              bool keeps_shape, OpRule rule) {
  RegisterOps({{.name = name,
                .infer = [keeps_shape](absl::Span<const ValueType> operands,
                                       const Attributes&)
                    -> absl::StatusOr<std::vector<ValueType>> {
                  ValueType y = operands[0];
                  if (!keeps_shape) y.shape.erase(y.shape.begin());
                  return std::vector<ValueType>{std::move(y)};
                },
                .kernel = kernel}});
  RegisterRule(name, [rule = std::move(rule)](const Program&, const Node&) {
    return rule;
  });
}

OpRule WithPadding(double identity) {
  OpRule rule = MakeRule("ab->b");
  rule.operand_rules = {{.identity = identity}};
  return rule;
}

// A wrong lowering that returns partial sums as the sum.
absl::StatusOr<std::vector<LocalValue>> ForgetTheRest(Lowering& l,
                                                      const Node& node) {
  const OpRule& rule = RuleOf(l.program, node);
  ASSIGN_OR_RETURN(std::vector<LocalValue> results,
                   l.LowerByRule(node, rule, l.ChooseAxes(node, rule)));
  results[0].sharding.partial.clear();
  return results;
}

template <const char* kOp>
void Write(CaseWriter& c) {
  c.differentiable = false;
  const Dim rows = c.Size(), columns = c.Size();
  c.Result(c.b.AddOne(kOp, {c.Float({rows, columns})}));
}

template <const char* kOp>
int Failures() {
  const Family family{kOp, kCases, Write<kOp>};
  int failures = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    if (!Check(MakeCase(family, seed)).empty()) ++failures;
  }
  return failures;
}

constexpr char kSum[] = "honest_sum";
constexpr char kUnmasked[] = "unmasked_sum";
constexpr char kForgetful[] = "forgetful_sum";
constexpr char kRunning[] = "honest_running_sum";
constexpr char kParallel[] = "parallel_running_sum";

TEST(BrokenRuleTest, RightRulesPass) {
  Register(kSum, Sum, false, WithPadding(0.0));
  Register(kRunning, RunningSum, true, MakeRule("Ab->Ab"));
  EXPECT_EQ(Failures<kSum>(), 0);
  EXPECT_EQ(Failures<kRunning>(), 0);
}

TEST(BrokenRuleTest, PaddingThatCountsIsFound) {
  Register(kUnmasked, Sum, false, WithPadding(1.0));
  EXPECT_THAT(Failures<kUnmasked>(), Gt(kCases / 20));
}

TEST(BrokenRuleTest, AFactorThatIsNotParallelIsFound) {
  Register(kParallel, RunningSum, true, MakeRule("ab->ab"));
  EXPECT_THAT(Failures<kParallel>(), Gt(kCases / 20));
}

TEST(BrokenRuleTest, ASumThatIsNotMadeIsFound) {
  Register(kForgetful, Sum, false, WithPadding(0.0));
  RegisterLowering(kForgetful, ForgetTheRest);
  EXPECT_THAT(Failures<kForgetful>(), Gt(kCases / 20));
}

}  // namespace
}  // namespace gshard
