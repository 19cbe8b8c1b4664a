// dropout and dropout_rows: the same random numbers as in the whole tensor.

#include "services/base/status_macros.h"
#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

bool IsSplit(const Lowering& l, const Axes& axes) {
  return l.mesh.Parts(axes) > 1;
}

LoweredValues LowerDropout(Lowering& l, const Node& node) {
  OpRule rule = RuleOf(l.program, node);
  const Shape& shape = l.Type(node.inputs[0]).shape;
  // The index of a ragged row in the whole is unknown.
  if (!shape.empty() && l.GroupSizes(shape[0]) != kNoValue) {
    rule.factors[rule.operands[0][0][0]].whole = true;
  }
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  bool split = false;
  for (const Axes& of_factor : axes.of) split |= IsSplit(l, of_factor);
  if (!split) return l.LowerByRule(node, rule, axes);
  return l.LowerByRule(
      node, rule, axes, "dropout_part",
      PositionAttributes(shape, l.ShardingFor(rule.operands[0], rule, axes),
                         l.mesh));
}

// Rows carry the indices of their choices, which are local to the device if
// rows are split by token (reshard_rows.cc).
LoweredValues LowerDropoutRows(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  const ValueId x = node.inputs[0], rows = node.inputs[1];
  const Sharding sharding = l.ShardingFor(rule.operands[0], rule, axes);
  const Axes& tokens = sharding.dims[0].token_axes;
  const Node& plan = l.program.producer(rows);
  const bool renumber = IsSplit(l, tokens) && plan.op->name == "plan_dispatch";
  if (!renumber && !IsSplit(l, sharding.dims[1].axes))
    return std::vector<LocalValue>();
  l.SetRole(axes.role);
  std::vector<ValueId> operands;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    ASSIGN_OR_RETURN(const ValueId operand, l.Operand(node, rule, axes, i));
    operands.push_back(operand);
  }
  if (renumber) {
    Sharding of_choices = Sharding::Replicated(2);
    of_choices.dims[0].axes = tokens;
    ASSIGN_OR_RETURN(const ValueId choices,
                     l.Reshard(plan.inputs[0], of_choices, axes.role));
    const ValueId offset = l.AddOne("rows_offset", {choices}, l.Along(tokens));
    operands[1] =
        l.AddOne("add_offset", {operands[1], offset}, {{"factor", int64_t{1}}});
  }
  // Rows carry their indices; only columns need a position.
  Sharding columns = sharding;
  columns.dims[0] = DimSharding();
  const ValueId y = l.AddOne(
      "dropout_rows_part", operands,
      PositionAttributes(l.Type(x).shape, columns, l.mesh, node.attributes));
  return std::vector<LocalValue>{
      {.value = y, .sharding = sharding, .role = axes.role}};
}

}  // namespace

void RegisterDropoutLowerings() {
  RegisterLowering("dropout", LowerDropout);
  RegisterLowering("dropout_rows", LowerDropoutRows);
}

}  // namespace gshard
