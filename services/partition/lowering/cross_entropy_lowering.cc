// cross_entropy and cross_entropy_gradient of logits that are split over the
// vocabulary: the largest logit, the sums and the label's logit of each row are
// reduced over the devices; no device sees all words.

#include <limits>

#include "services/base/status_macros.h"
#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

LoweredValues Loss(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  const Sharding sharding = l.ShardingFor(rule.operands[0], rule, axes);
  const Axes& words = sharding.dims[1].axes;
  const Shape& shape = l.Type(node.inputs[0]).shape;
  if (l.mesh.Parts(words) <= 1) {
    return l.LowerByRule(node, rule, axes);
  }
  ASSIGN_OR_RETURN(const ValueId logits,
                   l.Reshard(node.inputs[0], sharding, axes.role));
  ASSIGN_OR_RETURN(const ValueId labels, l.Operand(node, rule, axes, 1));
  l.SetRole(axes.role);
  const ValueId masked = l.MaskPadding(logits, shape, sharding, 1,
                                       std::numeric_limits<float>::lowest());
  const ValueId max = l.AllReduce(
      l.AddOne("reduce_max", {masked}, {{"dims", std::vector<int64_t>{1}}}),
      words, Reduction::kMax);
  const ValueId sums =
      l.AllReduce(l.AddOne("cross_entropy_sums", {logits, labels, max},
                           PositionAttributes(shape, sharding, l.mesh)),
                  words);
  Attributes attributes = node.attributes;
  attributes["words"] = shape[1].size();
  const std::vector<ValueId> values = l.Add(
      "cross_entropy_of_sums", {sums, max, labels}, std::move(attributes));
  const DimSharding& rows = sharding.dims[0];
  return std::vector<LocalValue>{
      {.value = values[0],
       .sharding = {.dims = {}, .partial = rows.axes},
       .role = axes.role},
      {.value = values[1],
       .sharding = {.dims = {rows}, .partial = {}},
       .role = axes.role}};
}

LoweredValues LossGradient(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  const Sharding sharding = l.ShardingFor(rule.operands[0], rule, axes);
  if (l.mesh.Parts(sharding.dims[1].axes) <= 1) {
    return l.LowerByRule(node, rule, axes);
  }
  return l.LowerByRule(
      node, rule, axes, "cross_entropy_gradient_part",
      PositionAttributes(l.Type(node.inputs[0]).shape, sharding, l.mesh));
}

}  // namespace

void RegisterCrossEntropyLowerings() {
  RegisterLowering("cross_entropy", Loss);
  RegisterLowering("cross_entropy_gradient", LossGradient);
}

}  // namespace gshard
