// mask_tail along a split dimension: each device masks from the limit on,
// counted from the beginning of its part.

#include "services/base/status_macros.h"
#include "services/partition/lowering/halo_nodes.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

LoweredValues LowerMaskTail(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const int64_t dim = IntAttribute(node.attributes, "dim");
  const int factor = rule.operands[0][dim].front();
  const HaloCuts cuts = ChooseCuts(
      l, node, rule,
      {{factor, [](const Axes&) { return std::vector<HaloRequest>{}; }}});
  if (cuts.halos.empty()) return l.LowerByRule(node, cuts.rule, cuts.axes);

  ASSIGN_OR_RETURN(const ValueId x, l.Operand(node, cuts.rule, cuts.axes, 0));
  ASSIGN_OR_RETURN(const ValueId limit,
                   l.Operand(node, cuts.rule, cuts.axes, 1));
  l.SetRole(cuts.axes.role);
  const ValueId local =
      l.AddOne("part_limit", {limit, x},
               {{"axes", l.mesh.Names(cuts.axes.of[factor])}, {"dim", dim}});
  return HaloResult(l, node, cuts,
                    l.AddOne("mask_tail", {x, local}, node.attributes));
}

}  // namespace

void RegisterMaskTailLowerings() {
  RegisterLowering("mask_tail", LowerMaskTail);
}

}  // namespace gshard
