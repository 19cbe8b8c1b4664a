// softmax, rms_norm, layer_norm and their gradients.

#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/layer_norm.h"
#include "services/ops/rms_norm.h"
#include "services/ops/softmax.h"

namespace gshard {
namespace {

ResultTypes InferSoftmax(absl::Span<const ValueType> operands,
                         const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  if (operands[0].shape.empty()) {
    return absl::InvalidArgumentError(
        "operand 0 must have at least 1 dimension, got f32[]");
  }
  return std::vector<ValueType>{operands[0]};
}

ResultTypes InferSoftmaxGradient(absl::Span<const ValueType> operands,
                                 const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloat(operands, 1));
  RETURN_IF_ERROR(ExpectShape(operands, 1, operands[0].shape));
  return InferSoftmax(operands.subspan(0, 1), attributes);
}

// x [..., M] and `vectors` operands [M] after it.
absl::Status ExpectNorm(absl::Span<const ValueType> operands, int vectors) {
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  if (operands[0].shape.empty()) {
    return absl::InvalidArgumentError(
        "operand 0 must have at least 1 dimension, got f32[]");
  }
  for (int i = 1; i <= vectors; ++i) {
    RETURN_IF_ERROR(ExpectFloat(operands, i));
    RETURN_IF_ERROR(ExpectShape(operands, i, {operands[0].shape.back()}));
  }
  return absl::OkStatus();
}

ValueType WithoutLast(const ValueType& x) {
  return {x.type, Shape(x.shape.begin(), x.shape.end() - 1)};
}

ResultTypes InferRmsNorm(absl::Span<const ValueType> operands,
                         const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "epsilon"));
  RETURN_IF_ERROR(ExpectNorm(operands, 1));
  return std::vector<ValueType>{operands[0], WithoutLast(operands[0])};
}

// x, scale, inverse_rms, dy -> dx, dscale.
ResultTypes InferRmsNormGradient(absl::Span<const ValueType> operands,
                                 const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 4));
  RETURN_IF_ERROR(ExpectNorm(operands, 1));
  RETURN_IF_ERROR(ExpectFloat(operands, 2));
  RETURN_IF_ERROR(ExpectShape(operands, 2, WithoutLast(operands[0]).shape));
  RETURN_IF_ERROR(ExpectFloat(operands, 3));
  RETURN_IF_ERROR(ExpectShape(operands, 3, operands[0].shape));
  return std::vector<ValueType>{operands[0], operands[1]};
}

ResultTypes InferLayerNorm(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "epsilon"));
  RETURN_IF_ERROR(ExpectNorm(operands, 2));
  return std::vector<ValueType>{operands[0], WithoutLast(operands[0]),
                                WithoutLast(operands[0])};
}

// x, scale, mean, inverse_std, dy -> dx, dscale, dbias.
ResultTypes InferLayerNormGradient(absl::Span<const ValueType> operands,
                                   const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 5));
  RETURN_IF_ERROR(ExpectNorm(operands, 1));
  for (const int i : {2, 3}) {
    RETURN_IF_ERROR(ExpectFloat(operands, i));
    RETURN_IF_ERROR(ExpectShape(operands, i, WithoutLast(operands[0]).shape));
  }
  RETURN_IF_ERROR(ExpectFloat(operands, 4));
  RETURN_IF_ERROR(ExpectShape(operands, 4, operands[0].shape));
  return std::vector<ValueType>{operands[0], operands[1], operands[1]};
}

}  // namespace

std::vector<OpDef> NormOps() {
  std::vector<OpDef> ops;
  ops.push_back(
      {.name = "softmax",
       .infer = InferSoftmax,
       .kernel = ResultOf([](KernelContext& c) { return Softmax(c.Take(0)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.AddOne("softmax_gradient", {node.outputs[0], dy[0]})};
       }});
  ops.push_back({.name = "softmax_gradient",
                 .infer = InferSoftmaxGradient,
                 .kernel = ResultOf([](KernelContext& c) {
                   return SoftmaxGradient(c.operands[0], c.Take(1));
                 })});
  ops.push_back(
      {.name = "rms_norm",
       .infer = InferRmsNorm,
       .kernel =
           [](KernelContext& c) {
             return SetRmsNorm(c,
                               RmsNorm(c.Take(0), c.operands[1], EpsilonOf(c)));
           },
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         if (dy[1] != kNoValue) {
           return absl::UnimplementedError(
               "rms_norm: inverse_rms has no gradient");
         }
         return b.AddNode(
             "rms_norm_gradient",
             {node.inputs[0], node.inputs[1], node.outputs[1], dy[0]}, {});
       }});
  ops.push_back({.name = "rms_norm_gradient",
                 .infer = InferRmsNormGradient,
                 .kernel = [](KernelContext& c) {
                   RmsNormGradients g = RmsNormGradient(
                       c.operands[0], c.operands[1], c.operands[2], c.Take(3));
                   c.results[0] = std::move(g.dx);
                   c.results[1] = std::move(g.dscale);
                   return absl::OkStatus();
                 }});
  ops.push_back(
      {.name = "layer_norm",
       .infer = InferLayerNorm,
       .kernel =
           [](KernelContext& c) {
             return SetLayerNorm(c, LayerNorm(c.Take(0), c.operands[1],
                                              c.operands[2], EpsilonOf(c)));
           },
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         if (dy[1] != kNoValue || dy[2] != kNoValue) {
           return absl::UnimplementedError(
               "layer_norm: mean and inverse_std have no gradient");
         }
         return b.AddNode("layer_norm_gradient",
                          {node.inputs[0], node.inputs[1], node.outputs[1],
                           node.outputs[2], dy[0]},
                          {});
       }});
  ops.push_back({.name = "layer_norm_gradient",
                 .infer = InferLayerNormGradient,
                 .kernel = [](KernelContext& c) {
                   LayerNormGradients g = LayerNormGradient(
                       c.operands[0], c.operands[1], c.operands[2],
                       c.operands[3], c.Take(4));
                   c.results[0] = std::move(g.dx);
                   c.results[1] = std::move(g.dscale);
                   c.results[2] = std::move(g.dbias);
                   return absl::OkStatus();
                 }});
  return ops;
}

}  // namespace gshard
