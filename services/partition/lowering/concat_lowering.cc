// concat along a split dimension: each operand, padded to the size of the
// result, gives a device a piece as large as its part; the pieces are overlaid.

#include "services/base/status_macros.h"
#include "services/partition/lowering/halo_nodes.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

LoweredValues LowerConcat(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const int64_t dim = IntAttribute(node.attributes, "dim");
  const int factor = rule.results[0][dim].front();
  const std::map<int, HaloRequests> moved = {
      {factor,
       [&](const Axes& axes) -> std::optional<std::vector<HaloRequest>> {
         // A single operand moves nowhere.
         if (node.inputs.size() == 1) return std::vector<HaloRequest>{};
         const int64_t total = l.Type(node.outputs[0]).shape[dim].size();
         std::vector<HaloRequest> requests;
         int64_t begin = 0;
         for (const ValueId input : node.inputs) {
           const int64_t size = l.Type(input).shape[dim].size();
           if (size == 0) return std::nullopt;
           requests.push_back(PadHalo(size, begin, total - begin - size, 0,
                                      l.mesh.Parts(axes)));
           begin += size;
         }
         return requests;
       }}};
  const HaloCuts cuts = ChooseCuts(l, node, rule, moved);
  if (cuts.Find(factor, 0) == nullptr) {
    return l.LowerByRule(node, cuts.rule, cuts.axes);
  }
  const Axes& axes = cuts.axes.of[factor];
  ValueId joined = kNoValue;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    ASSIGN_OR_RETURN(const ValueId piece,
                     HaloOperand(l, node, cuts, i, /*mask=*/false));
    if (i == 0) {
      joined = piece;
      continue;
    }
    const HaloPlan& plan = cuts.Find(factor, i)->plan;
    joined = l.AddOne("overlay",
                      {joined, piece, FormNode(l, axes, plan.valid_begin),
                       FormNode(l, axes, plan.valid_end)},
                      {{"dim", dim}});
  }
  return HaloResult(l, node, cuts, joined);
}

}  // namespace

void RegisterConcatLowerings() { RegisterLowering("concat", LowerConcat); }

}  // namespace gshard
