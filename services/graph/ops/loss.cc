// cross_entropy, cross_entropy_gradient.

#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/cross_entropy.h"

namespace gshard {
namespace {

absl::Status ExpectLoss(absl::Span<const ValueType> operands,
                        const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "smoothing"));
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "z_loss"));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  return ExpectShape(operands, 1, {operands[0].shape[0]});
}

// logits [N, V], labels i32[N] -> loss [], log_sum_exp [N].
ResultTypes InferCrossEntropy(absl::Span<const ValueType> operands,
                              const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectLoss(operands, attributes));
  return std::vector<ValueType>{
      {ElementType::kFloat32, {}},
      {ElementType::kFloat32, {operands[0].shape[0]}}};
}

// logits, labels, log_sum_exp, dloss [] -> dlogits.
ResultTypes InferGradient(absl::Span<const ValueType> operands,
                          const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 4));
  RETURN_IF_ERROR(ExpectLoss(operands, attributes));
  RETURN_IF_ERROR(ExpectFloat(operands, 2));
  RETURN_IF_ERROR(ExpectFloat(operands, 3));
  RETURN_IF_ERROR(ExpectShape(operands, 2, {operands[0].shape[0]}));
  RETURN_IF_ERROR(ExpectShape(operands, 3, {}));
  return std::vector<ValueType>{operands[0]};
}

OperandGradients Gradient(Builder& b, const Node& node,
                          absl::Span<const ValueId> dy) {
  if (dy[1] != kNoValue) {
    return absl::UnimplementedError(
        "cross_entropy: log_sum_exp has no gradient");
  }
  return std::vector<ValueId>{
      b.AddOne("cross_entropy_gradient",
               {node.inputs[0], node.inputs[1], node.outputs[1], dy[0]},
               node.attributes),
      kNoValue};
}

}  // namespace

std::vector<OpDef> LossOps() {
  return {
      {.name = "cross_entropy",
       .infer = InferCrossEntropy,
       .kernel =
           [](KernelContext& c) { return CallCrossEntropy(c, CrossEntropy); },
       .gradient = Gradient},
      {.name = "cross_entropy_gradient",
       .infer = InferGradient,
       .kernel = [](KernelContext& c) {
         return CallCrossEntropyGradient(c, CrossEntropyGradient);
       }}};
}

}  // namespace gshard
