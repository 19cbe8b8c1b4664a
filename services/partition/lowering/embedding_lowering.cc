// embedding and embedding_gradient of a table that is split over its words:
// every device looks up the ids that it has, and the sum over the devices is
// the result. The gradient's rows are the device's own.

#include "services/base/status_macros.h"
#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

LoweredValues Lookup(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  const Sharding sharding = l.ShardingFor(rule.operands[0], rule, axes);
  if (l.mesh.Parts(sharding.dims[0].axes) <= 1) {
    return l.LowerByRule(node, rule, axes);
  }
  // The table's padding is not read, so it is not masked, which would copy it.
  ASSIGN_OR_RETURN(const ValueId table,
                   l.Reshard(node.inputs[0], sharding, axes.role));
  ASSIGN_OR_RETURN(const ValueId ids, l.Operand(node, rule, axes, 1));
  l.SetRole(axes.role);
  LocalValue rows{
      .value = l.AddOne(
          "embedding_part", {table, ids},
          PositionAttributes(l.Type(node.inputs[0]).shape, sharding, l.mesh)),
      .sharding = l.ShardingFor(rule.results[0], rule, axes),
      .role = axes.role};
  rows.sharding.partial = l.MissingAxes(rule.results[0], rule, axes);
  return std::vector<LocalValue>{std::move(rows)};
}

LoweredValues EmbeddingGradient(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  const Sharding sharding = l.ShardingFor(rule.results[0], rule, axes);
  if (l.mesh.Parts(sharding.dims[0].axes) <= 1) {
    return l.LowerByRule(node, rule, axes);
  }
  return l.LowerByRule(
      node, rule, axes, "embedding_gradient_part",
      PositionAttributes(l.Type(node.outputs[0]).shape, sharding, l.mesh));
}

}  // namespace

void RegisterEmbeddingLowerings() {
  RegisterLowering("embedding", Lookup);
  RegisterLowering("embedding_gradient", EmbeddingGradient);
}

}  // namespace gshard
