// attention and attention_gradient: causal masks and random numbers count from
// the first sentence, head and query of the whole.

#include "absl/strings/str_cat.h"
#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

LoweredValues LowerAttention(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  const Sharding queries = l.ShardingFor(rule.operands[0], rule, axes);
  bool depends = IntAttribute(node.attributes, "causal") != 0 &&
                 l.mesh.Parts(queries.dims[1].axes) > 1;
  if (FloatAttribute(node.attributes, "dropout_rate") > 0.0) {
    for (const DimSharding& dim : queries.dims) {
      depends |= l.mesh.Parts(dim.axes) > 1;
    }
  }
  if (!depends) return l.LowerByRule(node, rule, axes);
  return l.LowerByRule(
      node, rule, axes, absl::StrCat(node.op->name, "_part"),
      PositionAttributes(l.Type(node.inputs[0]).shape, queries, l.mesh));
}

}  // namespace

void RegisterAttentionLowerings() {
  RegisterLowering("attention", LowerAttention);
  RegisterLowering("attention_gradient", LowerAttention);
}

}  // namespace gshard
