// ragged_dot, ragged_bias_add and their gradients: rows sorted by expert.

#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/ragged_dot.h"

namespace gshard {
namespace {

absl::Status ExpectFloats(absl::Span<const ValueType> operands, int i,
                          int rank) {
  RETURN_IF_ERROR(ExpectFloat(operands, i));
  return ExpectRank(operands, i, rank);
}

absl::Status ExpectRanks(absl::Span<const ValueType> operands, int rank0,
                         int rank1) {
  RETURN_IF_ERROR(ExpectRank(operands, 0, rank0));
  return ExpectRank(operands, 1, rank1);
}

// Expects operands 0 and 1 of these ranks, of float32 or bfloat16.
absl::Status ExpectProduct(absl::Span<const ValueType> operands, int rank0,
                           int rank1) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectFactors(operands, 0, 1));
  return ExpectRanks(operands, rank0, rank1);
}

absl::Status ExpectGroupSizes(absl::Span<const ValueType> operands,
                              const Dim& experts) {
  RETURN_IF_ERROR(ExpectInt(operands, 2));
  return ExpectShape(operands, 2, {experts});
}

// rows [R, M], weights [E, M, H], group_sizes i32[E] -> [R, H].
ResultTypes InferDot(absl::Span<const ValueType> operands, const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectFactorAndWeights(operands, 0, 1));
  RETURN_IF_ERROR(ExpectRanks(operands, 2, 3));
  const Shape& weights = operands[1].shape;
  RETURN_IF_ERROR(ExpectShape(operands, 0, {operands[0].shape[0], weights[1]}));
  RETURN_IF_ERROR(ExpectGroupSizes(operands, weights[0]));
  return std::vector<ValueType>{
      {ElementType::kFloat32, {operands[0].shape[0], weights[2]}}};
}

// dy [R, H], weights [E, M, H], group_sizes -> [R, M].
ResultTypes InferRowsGradient(absl::Span<const ValueType> operands,
                              const Attributes&) {
  RETURN_IF_ERROR(ExpectProduct(operands, 2, 3));
  const Shape& weights = operands[1].shape;
  RETURN_IF_ERROR(ExpectShape(operands, 0, {operands[0].shape[0], weights[2]}));
  RETURN_IF_ERROR(ExpectGroupSizes(operands, weights[0]));
  return std::vector<ValueType>{
      {ElementType::kFloat32, {operands[0].shape[0], weights[1]}}};
}

// rows [R, M], dy [R, H], group_sizes [E] -> [E, M, H].
ResultTypes InferWeightsGradient(absl::Span<const ValueType> operands,
                                 const Attributes&) {
  RETURN_IF_ERROR(ExpectProduct(operands, 2, 2));
  RETURN_IF_ERROR(
      ExpectShape(operands, 1, {operands[0].shape[0], operands[1].shape[1]}));
  RETURN_IF_ERROR(ExpectInt(operands, 2));
  RETURN_IF_ERROR(ExpectRank(operands, 2, 1));
  return std::vector<ValueType>{
      {ElementType::kFloat32,
       {operands[2].shape[0], operands[0].shape[1], operands[1].shape[1]}}};
}

// rows [R, H], bias [E, H], group_sizes -> [R, H].
ResultTypes InferBiasAdd(absl::Span<const ValueType> operands,
                         const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectFloats(operands, 0, 2));
  RETURN_IF_ERROR(ExpectFloats(operands, 1, 2));
  RETURN_IF_ERROR(
      ExpectShape(operands, 1, {operands[1].shape[0], operands[0].shape[1]}));
  RETURN_IF_ERROR(ExpectGroupSizes(operands, operands[1].shape[0]));
  return std::vector<ValueType>{operands[0]};
}

// dy [R, H], group_sizes [E] -> [E, H].
ResultTypes InferBiasGradient(absl::Span<const ValueType> operands,
                              const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloats(operands, 0, 2));
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  RETURN_IF_ERROR(ExpectRank(operands, 1, 1));
  return std::vector<ValueType>{
      {ElementType::kFloat32, {operands[1].shape[0], operands[0].shape[1]}}};
}

}  // namespace

std::vector<OpDef> RaggedOps() {
  std::vector<OpDef> ops;
  ops.push_back(
      {.name = "ragged_dot",
       .infer = InferDot,
       .kernel = RaggedKernel(RaggedDot),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         const ValueId factor = b.Cast(dy[0], b.type(node.inputs[0]).type);
         return std::vector<ValueId>{
             b.AddOne("ragged_dot_rows_gradient",
                      {factor, node.inputs[1], node.inputs[2]}),
             b.AddOne("ragged_dot_weights_gradient",
                      {node.inputs[0], factor, node.inputs[2]}),
             kNoValue};
       }});
  ops.push_back({.name = "ragged_dot_rows_gradient",
                 .infer = InferRowsGradient,
                 .kernel = RaggedKernel(RaggedDotRowsGradient)});
  ops.push_back({.name = "ragged_dot_weights_gradient",
                 .infer = InferWeightsGradient,
                 .kernel = RaggedKernel(RaggedDotWeightsGradient)});
  ops.push_back(
      {.name = "ragged_bias_add",
       .infer = InferBiasAdd,
       .kernel = [](KernelContext& c) -> absl::Status {
         RETURN_IF_ERROR(CheckGroupSizes(c.operands[2], c.operands[0].dim(0)));
         c.results[0] = RaggedBiasAdd(c.Take(0), c.operands[1], c.operands[2]);
         return absl::OkStatus();
       },
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             dy[0], b.AddOne("ragged_bias_gradient", {dy[0], node.inputs[2]}),
             kNoValue};
       }});
  ops.push_back({.name = "ragged_bias_gradient",
                 .infer = InferBiasGradient,
                 .kernel = RaggedBiasGradientKernel(RaggedBiasGradient)});
  return ops;
}

}  // namespace gshard
