#include "services/cuda/fuse_products.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/graph/op.h"

namespace gshard {
namespace {

constexpr char kFused[] = "fused_ragged_dot";

// By value: the only node that uses it, or -1 if several or none do.
std::vector<int> OnlyUsers(const Program& program) {
  std::vector<int> users(program.values.size(), -1);
  std::vector<int> uses(program.values.size(), 0);
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    for (const ValueId input : program.nodes[n].inputs) {
      users[input] = ++uses[input] == 1 ? static_cast<int>(n) : -1;
    }
  }
  for (const auto& [name, value] : program.outputs) users[value] = -1;
  return users;
}

ResultTypes InferFused(absl::Span<const ValueType> operands,
                       const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "relu"));
  ASSIGN_OR_RETURN(const ElementType type, FloatTypeAttribute(attributes));
  ASSIGN_OR_RETURN(
      std::vector<ValueType> results,
      FindOp("ragged_dot")
          ->infer(operands.first(std::min<size_t>(3, operands.size())),
                  attributes));
  if (operands.size() > 3) {
    RETURN_IF_ERROR(ExpectOperands(operands, 4));
    RETURN_IF_ERROR(ExpectFloat(operands, 3));
    const Shape& weights = operands[1].shape;
    RETURN_IF_ERROR(ExpectShape(operands, 3, {weights[0], weights[2]}));
  }
  results[0].type = type;
  return results;
}

}  // namespace

void RegisterFusedOps() {
  RegisterOps({{.name = kFused, .infer = InferFused, .kernel = nullptr}});
}

Program FuseProducts(const Program& program) {
  const std::vector<int> users = OnlyUsers(program);
  Program fused = program;
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const Node& product = program.nodes[n];
    if (product.op->name != "ragged_dot") continue;
    int last = static_cast<int>(n);
    // The next node of the chain if its operator is `op`, else null.
    const auto next = [&](const char* op) -> const Node* {
      const int user = users[program.nodes[last].outputs[0]];
      if (user < 0 || program.nodes[user].op->name != op) return nullptr;
      return &program.nodes[user];
    };
    const auto take = [&] { last = users[program.nodes[last].outputs[0]]; };
    std::vector<ValueId> inputs = product.inputs;
    const Node* const bias = next("ragged_bias_add");
    if (bias != nullptr && bias->inputs[2] == product.inputs[2] &&
        bias->inputs[0] == product.outputs[0]) {
      inputs.push_back(bias->inputs[1]);
      take();
    }
    const Node* const cast = next("cast");
    const bool rounds =
        cast != nullptr &&
        program.type(cast->outputs[0]).type == ElementType::kBFloat16;
    if (rounds) take();
    const bool relu = next("relu") != nullptr;
    if (relu) take();
    if (last == static_cast<int>(n)) continue;
    Node& node = fused.nodes[last];
    node.op = FindOp(kFused);
    CHECK(node.op != nullptr);
    node.inputs = std::move(inputs);
    node.attributes = {{"type", std::string(rounds ? "bf16" : "f32")},
                       {"relu", int64_t{relu}}};
  }
  return Pruned(fused);
}

}  // namespace gshard
