// reduce_max_gradient over split dimensions: ties may be on several devices,
// and share the gradient.

#include <algorithm>
#include <limits>

#include "services/base/status_macros.h"
#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

LoweredValues LowerReduceMaxGradient(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  const Sharding sharding = l.ShardingFor(rule.operands[0], rule, axes);
  const std::vector<int64_t>& dims = IntsAttribute(node.attributes, "dims");
  Axes reduced;
  for (const int64_t d : dims) {
    const Axes& along = sharding.dims[d].axes;
    reduced.insert(reduced.end(), along.begin(), along.end());
  }
  if (l.mesh.Parts(reduced) == 1) return l.LowerByRule(node, rule, axes);

  const ValueId input = node.inputs[0];
  ASSIGN_OR_RETURN(ValueId x, l.Operand(node, rule, axes, 0));
  ASSIGN_OR_RETURN(const ValueId y, l.Operand(node, rule, axes, 1));
  ASSIGN_OR_RETURN(const ValueId dy, l.Operand(node, rule, axes, 2));
  l.SetRole(axes.role);
  for (const int64_t d : dims) {
    // NaN equals nothing.
    x = l.MaskPadding(x, l.Type(input).shape, sharding, d,
                      std::numeric_limits<double>::quiet_NaN());
  }
  std::sort(reduced.begin(), reduced.end());
  const ValueId ties = l.AllReduce(
      l.AddOne("reduce_max_ties", {x, y}, {{"dims", dims}}), reduced);
  const ValueId dx =
      l.AddOne("reduce_max_share", {x, y, ties, dy}, {{"dims", dims}});
  return std::vector<LocalValue>{{dx, sharding, axes.role}};
}

}  // namespace

void RegisterReduceMaxLowerings() {
  RegisterLowering("reduce_max_gradient", LowerReduceMaxGradient);
}

}  // namespace gshard
