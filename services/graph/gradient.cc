#include "services/graph/gradient.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<std::vector<ValueId>> AddGradients(
    Builder& builder, ValueId loss, absl::Span<const ValueId> values) {
  RETURN_IF_ERROR(builder.status());
  if (builder.type(loss) != ValueType{ElementType::kFloat32, {}}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loss must be f32[], got ", builder.type(loss).ToString()));
  }
  // Only values between `values` and the loss get a gradient.
  const size_t num_values = builder.program().values.size();
  const size_t num_nodes = builder.program().nodes.size();
  std::vector<bool> depends(num_values, false);
  for (const ValueId value : values) depends[value] = true;
  for (size_t n = 0; n < num_nodes; ++n) {
    const Node& node = builder.program().nodes[n];
    bool any = false;
    for (const ValueId input : node.inputs) any = any || depends[input];
    for (const ValueId output : node.outputs) {
      depends[output] = depends[output] || any;
    }
  }

  std::vector<ValueId> gradients(num_values, kNoValue);
  gradients[loss] = builder.Constant(1.0);
  for (size_t n = num_nodes; n-- > 0;) {
    // A copy: adding nodes reallocates the list.
    const Node node = builder.program().nodes[n];
    // Every use has been visited: the gradient is complete, and takes its
    // value's sharding.
    for (const ValueId output : node.outputs) {
      const ValueId gradient = gradients[output];
      if (gradient == kNoValue) continue;
      const std::string& sharding = builder.program().values[output].sharding;
      if (!sharding.empty() &&
          builder.program().values[gradient].sharding.empty()) {
        builder.Annotate(gradient, std::string(sharding));
      }
    }
    bool wanted = false;
    for (const ValueId input : node.inputs) wanted = wanted || depends[input];
    std::vector<ValueId> of_results;
    bool any = false;
    for (const ValueId output : node.outputs) {
      of_results.push_back(gradients[output]);
      any = any || gradients[output] != kNoValue;
    }
    if (!wanted || !any) continue;
    if (node.op->gradient == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("operator '", node.op->name, "' has no gradient"));
    }
    ASSIGN_OR_RETURN(const std::vector<ValueId> of_operands,
                     node.op->gradient(builder, node, of_results));
    RETURN_IF_ERROR(builder.status());
    CHECK(of_operands.size() == node.inputs.size());
    for (size_t i = 0; i < of_operands.size(); ++i) {
      if (of_operands[i] == kNoValue) continue;
      CHECK(builder.type(of_operands[i]).shape ==
            builder.type(node.inputs[i]).shape);
      ValueId& sum = gradients[node.inputs[i]];
      sum = sum == kNoValue
                ? of_operands[i]
                : builder.Add(
                      builder.Cast(sum, ElementType::kFloat32),
                      builder.Cast(of_operands[i], ElementType::kFloat32));
    }
  }

  std::vector<ValueId> found;
  for (const ValueId value : values) found.push_back(gradients[value]);
  return found;
}

}  // namespace gshard
