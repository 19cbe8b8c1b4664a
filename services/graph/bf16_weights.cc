#include "services/graph/bf16_weights.h"

#include "services/graph/op.h"
#include "services/ops/einsum.h"

namespace gshard {
namespace {

// Of the weights that a node has as this operand.
WeightForm FormOfOperand(const Node& node, size_t operand) {
  if (operand != 1) return {};
  if (node.op->name == "ragged_dot") return {.batch_dims = 1, .row_dims = 1};
  if (node.op->name != "einsum") return {};
  const auto spec = ParseEinsum(StringAttribute(node.attributes, "equation"));
  return spec.ok() ? WeightForm{.row_dims = RowLettersOfB(*spec)}
                   : WeightForm{};
}

}  // namespace

Bf16Weights Bf16WeightsOf(const Program& program) {
  Bf16Weights weights;
  // Parameters by value.
  std::map<ValueId, std::string> names;
  for (const Node* node : program.NodesOf("parameter")) {
    const ValueId value = node->outputs[0];
    if (program.type(value).type != ElementType::kBFloat16) continue;
    names[value] = StringAttribute(node->attributes, "name");
  }
  const auto use = [&](ValueId value, const WeightForm& form) {
    const auto found = names.find(value);
    if (found != names.end())
      MergeBf16Weights({{found->second, form}}, weights);
  };
  for (const Node& node : program.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      use(node.inputs[i], FormOfOperand(node, i));
    }
  }
  for (const auto& [name, value] : program.outputs) use(value, {});
  // What nothing uses.
  for (const auto& [value, name] : names) weights.try_emplace(name);
  return weights;
}

void MergeBf16Weights(const Bf16Weights& other, Bf16Weights& into) {
  for (const auto& [name, form] : other) {
    const auto [found, added] = into.try_emplace(name, form);
    if (!added && found->second != form) found->second = {};
  }
}

}  // namespace gshard
