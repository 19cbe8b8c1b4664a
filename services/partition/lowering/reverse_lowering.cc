// reverse along split dimensions: devices reverse their parts and swap them,
// and the padding, which is then in front, is removed.

#include "services/base/status_macros.h"
#include "services/partition/lowering/halo_nodes.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

LoweredValues LowerReverse(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const ValueId input = node.inputs[0];
  const std::vector<int64_t>& dims = IntsAttribute(node.attributes, "dims");
  std::map<int, HaloRequests> moved;
  for (const int64_t d : dims) {
    moved[rule.operands[0][d].front()] =
        [&l, input,
         d](const Axes& axes) -> std::optional<std::vector<HaloRequest>> {
      // A value that is available whole is reversed whole and then split.
      if (HasUncutVersion(l, input, d)) return std::nullopt;
      const Dim& dim = l.Type(input).shape[d];
      if (!IsUneven(dim, axes, l.mesh)) return std::vector<HaloRequest>{};
      const int64_t parts = l.mesh.Parts(axes);
      const HaloRequest request = ReverseHalo(dim.size(), parts);
      const absl::StatusOr<HaloPlan> plan = PlanHalo(request);
      if (!plan.ok() || !IsNear(*plan, parts)) return std::nullopt;
      return std::vector<HaloRequest>{request};
    };
  }
  const HaloCuts cuts = ChooseCuts(l, node, rule, moved);
  if (cuts.halos.empty()) return l.LowerByRule(node, cuts.rule, cuts.axes);

  ASSIGN_OR_RETURN(ValueId x, l.Operand(node, cuts.rule, cuts.axes, 0));
  l.SetRole(cuts.axes.role);
  x = l.AddOne("reverse", {x}, {{"dims", dims}});
  for (const int64_t d : dims) {
    const int factor = cuts.rule.operands[0][d].front();
    if (cuts.halos.count(factor) == 0) continue;
    RETURN_IF_ERROR(l.b.status());
    const Axes& axes = cuts.axes.of[factor];
    std::vector<int64_t> source(l.mesh.Parts(axes));
    for (size_t i = 0; i < source.size(); ++i)
      source[i] = source.size() - 1 - i;
    x = l.AddOne("permute", {x},
                 l.Along(axes, {{"shape", l.b.type(x).shape},
                                {"source", std::move(source)}}));
    if (const Halo* const halo = cuts.Find(factor, 0); halo != nullptr) {
      x = ExchangeHalo(l, x, d, axes, halo->plan, /*mask=*/false);
    }
  }
  return HaloResult(l, node, cuts, x);
}

}  // namespace

void RegisterReverseLowerings() { RegisterLowering("reverse", LowerReverse); }

}  // namespace gshard
