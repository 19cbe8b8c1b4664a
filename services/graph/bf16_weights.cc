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

// What is used in two ways is row-major.
void Merge(const std::string& name, const WeightForm& form, Bf16Weights& into) {
  const auto [found, added] = into.try_emplace(name, form);
  if (!added && found->second != form) found->second = {};
}

}  // namespace

int64_t WeightForm::MatricesOf(const Dims& dims) const {
  return NumElements(absl::MakeConstSpan(dims).subspan(0, batch_dims));
}

int64_t WeightForm::RowsOf(const Dims& dims) const {
  return NumElements(absl::MakeConstSpan(dims).subspan(batch_dims, row_dims));
}

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
    if (found != names.end()) Merge(found->second, form, weights);
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
  for (const auto& [name, form] : other) Merge(name, form, into);
}

}  // namespace gshard
