#include "services/moe/sharding_rules.h"

#include <string>
#include <utility>
#include <vector>

#include "services/base/status_macros.h"
#include "services/moe/loss_shares.h"
#include "services/partition/lowering.h"
#include "services/sharding/rule.h"

namespace gshard {
namespace {

// The token factor comes first in every rule here.
constexpr int kToken = 0;

// Groups are not split; a single group of all tokens cannot be partitioned.
OpRule KeepGroups(OpRule rule, int64_t group_size) {
  rule.factors[kToken].whole = group_size == 0;
  rule.factors[kToken].multiple = group_size;
  return rule;
}

int64_t GroupSize(const Node& node) {
  return IntAttribute(node.attributes, "group_size");
}

// Padding has no choices.
constexpr OperandRule kNoChoice = {.identity = -1.0, .mask_always = true};

// Groups [G, E] are split where tokens are. Losses are means: see LowerGating.
OpRule GatingRule(const Program&, const Node& node) {
  std::string text = "tE,t,->tK,tK,tK,E,K";
  if (node.outputs.size() > 5) text += ",,,tE,t";
  OpRule rule = KeepGroups(MakeRule(text), GroupSize(node));
  rule.operand_rules.resize(2);
  rule.operand_rules[1] = {.identity = 0.0, .mask_always = true};
  return rule;
}

OpRule GatingGradientSharding(const Program&, const Node& node) {
  OpRule rule = KeepGroups(MakeRule("tE,tK,tK,tE,t,tK,,->tE"), GroupSize(node));
  rule.operand_rules.resize(3);
  rule.operand_rules[1] = rule.operand_rules[2] = kNoChoice;
  return rule;
}

OpRule PlanRule(const Program&, const Node& node) {
  OpRule rule = KeepGroups(MakeRule("tK,tK->(Et),E"), GroupSize(node));
  rule.operand_rules = {kNoChoice, kNoChoice};
  return rule;
}

// Operators on rows numbered by operand `row_source`; tokens are split as they
// were in the plan.
RuleFunction OnRows(const char* letters, size_t row_source) {
  return [rule = MakeRule(letters), row_source](const Program& program,
                                                const Node& node) {
    const Node& plan = program.producer(node.inputs[row_source]);
    if (plan.op->name != "plan_dispatch") return rule;
    // The expert factor may come before the token factor.
    OpRule kept = rule;
    for (const std::vector<DimFactors>& dims : rule.operands) {
      for (const DimFactors& factors : dims) {
        if (factors.size() < 2) continue;
        kept.factors[factors.back()].whole = GroupSize(plan) == 0;
        kept.factors[factors.back()].multiple = GroupSize(plan);
      }
    }
    return kept;
  };
}

// This device's shares of the mean losses.
LossShares SharesOf(Lowering& l, ValueId expert, int64_t group_size,
                    const Axes& tokens) {
  // The gradient reuses the forward pass's node.
  const Program& local = l.b.program();
  for (const Node& node : local.nodes) {
    if (node.op->name == "loss_shares" &&
        local.producer(node.inputs[0]).inputs[0] == expert) {
      return {node.outputs[0], node.outputs[1]};
    }
  }
  const ValueId counts =
      l.AddOne("loss_counts", {expert}, {{"group_size", group_size}});
  const std::vector<ValueId> shares =
      l.Add("loss_shares", {counts, l.AllReduce(counts, tokens)});
  return {shares[0], shares[1]};
}

struct LocalNode {
  OpRule rule;
  Lowering::FactorAxes axes;
  std::vector<ValueId> operands;
};

// Empty if every device has all tokens. Operand `groups` is [G, E].
absl::StatusOr<LocalNode> LocalOperands(Lowering& l, const Node& node,
                                        size_t groups) {
  LocalNode local{.rule = RuleOf(l.program, node), .axes = {}, .operands = {}};
  local.axes = l.ChooseAxes(node, local.rule);
  if (l.mesh.Parts(local.axes.of[kToken]) == 1) return local;
  l.SetRole(local.axes.role);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    // Operand() checks the number of tokens, which does not fit groups.
    absl::StatusOr<ValueId> operand =
        i == groups ? l.Reshard(node.inputs[i],
                                l.ShardingFor(local.rule.operands[i],
                                              local.rule, local.axes),
                                local.axes.role)
                    : l.Operand(node, local.rule, local.axes, i);
    RETURN_IF_ERROR(operand.status());
    local.operands.push_back(*operand);
  }
  return local;
}

// Second experts are drawn by the tokens' indices in the whole batch. A loss is
// the sum over devices of the device's mean times its share.
LoweredValues LowerGating(Lowering& l, const Node& node) {
  ASSIGN_OR_RETURN(LocalNode local,
                   LocalOperands(l, node, /*groups=*/node.inputs.size()));
  if (local.operands.empty()) return std::vector<LocalValue>();
  const Axes& tokens = local.axes.of[kToken];
  local.operands.push_back(
      l.AddOne("rows_offset", {local.operands[1]}, l.Along(tokens)));
  std::vector<LocalValue> results(node.outputs.size());
  for (size_t i = 0; i < results.size(); ++i) {
    results[i] = {.value = kNoValue,
                  .sharding = l.ShardingFor(local.rule.results[i], local.rule,
                                            local.axes),
                  .role = local.axes.role};
    results[i].sharding.partial =
        l.MissingAxes(local.rule.results[i], local.rule, local.axes);
  }
  Attributes attributes = node.attributes;
  const bool losses = results.size() > 5;
  if (losses) {
    attributes["groups"] = Shape{LocalDim(l.Type(node.outputs[7]).shape[0],
                                          results[7].sharding.dims[0], l.mesh)};
  }
  std::vector<ValueId> values =
      l.Add("top2_gating", std::move(local.operands), std::move(attributes));
  RETURN_IF_ERROR(l.b.status());
  if (losses) {
    const LossShares shares = SharesOf(l, values[0], GroupSize(node), tokens);
    values[5] = l.AddOne("multiply", {values[5], shares.groups});
    values[6] = l.AddOne("multiply", {values[6], shares.tokens});
  }
  for (size_t i = 0; i < results.size(); ++i) results[i].value = values[i];
  return results;
}

LoweredValues LowerGatingGradient(Lowering& l, const Node& node) {
  ASSIGN_OR_RETURN(LocalNode local, LocalOperands(l, node, /*groups=*/3));
  if (local.operands.empty()) return std::vector<LocalValue>();
  // As in the forward pass, so that it is found there.
  ASSIGN_OR_RETURN(
      const ValueId expert,
      l.Reshard(node.inputs[1],
                l.ShardingFor(local.rule.operands[1], local.rule, local.axes),
                local.axes.role));
  const LossShares shares =
      SharesOf(l, expert, GroupSize(node), local.axes.of[kToken]);
  local.operands[6] = l.AddOne("multiply", {local.operands[6], shares.groups});
  local.operands[7] = l.AddOne("multiply", {local.operands[7], shares.tokens});
  LocalValue d_logits{
      .value = l.AddOne("top2_gating_gradient", std::move(local.operands),
                        node.attributes),
      .sharding = l.ShardingFor(local.rule.results[0], local.rule, local.axes),
      .role = local.axes.role};
  return std::vector<LocalValue>{std::move(d_logits)};
}

}  // namespace

void RegisterMoeSharding() {
  RegisterOps(LossShareOps());
  RegisterRule("top2_gating", GatingRule);
  RegisterRule("top2_gating_gradient", GatingGradientSharding);
  RegisterRule("plan_dispatch", PlanRule);
  RegisterRule("dispatch", OnRows("tm,(Et)->(Et)m", 1));
  RegisterRule("dispatch_gradient", OnRows("(Et)m,(Et)->tm", 1));
  RegisterRule("combine", OnRows("(Et)m,(Et),tK->tm", 1));
  // A device with only a part of the rows cannot tell which ones are lost.
  RegisterRule("renormalize_choices", OnRows("(Et)M,(Et),tK->tK,t", 1));
  RegisterRule("combine_gradient", OnRows("tm,(Et)m,(Et),tK->(Et)m,tK", 2));
  RegisterLowering("top2_gating", LowerGating);
  RegisterLowering("top2_gating_gradient", LowerGatingGradient);
}

}  // namespace gshard
