// slice, slice_gradient and pad along split dimensions: a device gets the
// elements of its part of the result from the neighbours that have them.

#include "services/base/status_macros.h"
#include "services/graph/kernel_calls.h"
#include "services/partition/lowering/halo_nodes.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

// A node as padding of operand 0 with `value`; slices have negative padding.
struct PadNode {
  std::vector<Padding> paddings;  // by dimension
  std::vector<bool> stays;        // whether the rule alone suffices
  double value = 0.0;
};

LoweredValues LowerPad(Lowering& l, const Node& node, const PadNode& pad) {
  const OpRule rule = RuleOf(l.program, node);
  const Shape& shape = l.Type(node.inputs[0]).shape;
  std::map<int, HaloRequests> moved;
  for (size_t d = 0; d < shape.size(); ++d) {
    const Padding& padding = pad.paddings[d];
    if (pad.stays[d]) continue;
    const int64_t size = shape[d].size();
    moved[rule.operands[0][d].front()] = [&l, padding, size](const Axes& axes) {
      return std::vector<HaloRequest>{PadHalo(size, padding.low, padding.high,
                                              padding.interior,
                                              l.mesh.Parts(axes))};
    };
  }
  const HaloCuts cuts = ChooseCuts(l, node, rule, moved);
  if (cuts.halos.empty()) return l.LowerByRule(node, cuts.rule, cuts.axes);

  ASSIGN_OR_RETURN(ValueId x, HaloOperand(l, node, cuts, 0, pad.value == 0.0));
  std::vector<int64_t> low, high, interior;
  bool pads = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int factor = cuts.rule.operands[0][d].front();
    const Halo* const halo = cuts.Find(factor, 0);
    Padding padding = pad.paddings[d];
    if (halo != nullptr) {
      const HaloPlan& plan = halo->plan;
      padding.low = plan.local.pad_low;
      padding.high = plan.local.pad_high;
      if (pad.value != 0.0) {
        const Axes& axes = cuts.axes.of[factor];
        x = l.AddOne("mask_outside",
                     {x, FormNode(l, axes, plan.valid_begin),
                      FormNode(l, axes, plan.valid_end)},
                     {{"dim", static_cast<int64_t>(d)}, {"value", pad.value}});
      }
    }
    low.push_back(padding.low);
    high.push_back(padding.high);
    interior.push_back(padding.interior);
    pads = pads || padding != Padding();
  }
  if (pads) {
    x = l.AddOne("pad", {x},
                 {{"low", std::move(low)},
                  {"high", std::move(high)},
                  {"interior", std::move(interior)},
                  {"value", pad.value}});
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    const int factor = cuts.rule.operands[0][d].front();
    const Halo* const halo = cuts.Find(factor, 0);
    if (halo == nullptr ||
        halo->plan.dilation_case != DilationCase::kShiftResults) {
      continue;
    }
    x = DynamicSliceNode(l, x, d,
                         FormNode(l, cuts.axes.of[factor], halo->plan.shift),
                         halo->plan.result_shard);
  }
  return HaloResult(l, node, cuts, x);
}

PadNode PadOf(const Lowering& l, const Node& node) {
  PadNode pad;
  const Attributes& attributes = node.attributes;
  const Shape& shape = l.Type(node.inputs[0]).shape;
  pad.paddings.resize(shape.size());
  pad.stays.assign(shape.size(), true);
  if (node.op->name == "pad") {
    pad.value = FloatAttribute(attributes, "value");
    pad.paddings = PaddingsOf(attributes);
    for (size_t d = 0; d < shape.size(); ++d) {
      pad.stays[d] = pad.paddings[d] == Padding();
    }
    return pad;
  }
  const int64_t dim = IntAttribute(attributes, "dim");
  // The attributes of a full slice do not fit a part either.
  pad.stays[dim] = false;
  const int64_t begin = IntAttribute(attributes, "begin");
  const int64_t end = IntAttribute(attributes, "end");
  if (node.op->name == "slice") {
    pad.paddings[dim] = {.low = -begin, .high = end - shape[dim].size()};
  } else {
    pad.paddings[dim] = {.low = begin,
                         .high = IntAttribute(attributes, "size") - end};
  }
  return pad;
}

}  // namespace

void RegisterPadLowerings() {
  for (const char* op : {"pad", "slice", "slice_gradient"}) {
    RegisterLowering(op, [](Lowering& l, const Node& node) -> LoweredValues {
      return LowerPad(l, node, PadOf(l, node));
    });
  }
}

}  // namespace gshard
