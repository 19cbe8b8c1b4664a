// add, subtract, multiply, divide, scale, exp, cast, relu, relu_gradient,
// dropout, dropout_rows.

#include "services/ops/elementwise.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/cast.h"
#include "services/ops/dropout.h"

namespace gshard {
namespace {

// Operands a and b; b has a's shape or its last dimensions.
ResultTypes InferBinary(absl::Span<const ValueType> operands,
                        const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectFloat(operands, 1));
  const Shape& a = operands[0].shape;
  const Shape& b = operands[1].shape;
  if (b.size() > a.size() || !std::equal(b.rbegin(), b.rend(), a.rbegin())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "operand 1 must have the shape of operand 0, ", operands[0].ToString(),
        ", or its last dimensions, got ", operands[1].ToString()));
  }
  return std::vector<ValueType>{operands[0]};
}

ResultTypes InferSame(absl::Span<const ValueType> operands, const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  return std::vector<ValueType>{operands[0]};
}

ResultTypes InferScale(absl::Span<const ValueType> operands,
                       const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "factor"));
  return InferSame(operands, attributes);
}

ResultTypes InferCast(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectFloatOrBFloat(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "type"));
  ASSIGN_OR_RETURN(const ElementType type, FloatTypeAttribute(attributes));
  return std::vector<ValueType>{{type, operands[0].shape}};
}

ResultTypes InferRelu(absl::Span<const ValueType> operands, const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectFloatOrBFloat(operands, 0));
  return std::vector<ValueType>{operands[0]};
}

// y of either type, dy f32 -> f32.
ResultTypes InferReluGradient(absl::Span<const ValueType> operands,
                              const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloatOrBFloat(operands, 0));
  RETURN_IF_ERROR(ExpectFloat(operands, 1));
  RETURN_IF_ERROR(ExpectShape(operands, 1, operands[0].shape));
  return std::vector<ValueType>{operands[1]};
}

// x, then a key i64[].
ResultTypes InferDropout(absl::Span<const ValueType> operands,
                         const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectIndex(operands, 1));
  RETURN_IF_ERROR(ExpectRate(attributes, "rate"));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "salt"));
  return std::vector<ValueType>{operands[0]};
}

// x [R, H], rows i32[R], key i64[].
ResultTypes InferDropoutRows(absl::Span<const ValueType> operands,
                             const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  RETURN_IF_ERROR(ExpectShape(operands, 1, {operands[0].shape[0]}));
  const std::vector<ValueType> without_rows = {operands[0], operands[2]};
  return InferDropout(without_rows, attributes);
}

// The gradient of a binary operator's second operand: summed over the leading
// dimensions that it lacks.
ValueId SumToOperand(Builder& b, ValueId gradient, ValueId operand) {
  const size_t missing =
      b.type(gradient).shape.size() - b.type(operand).shape.size();
  if (missing == 0) return gradient;
  std::vector<int64_t> dims;
  for (size_t i = 0; i < missing; ++i) dims.push_back(i);
  return b.ReduceSum(gradient, dims);
}

}  // namespace

std::vector<OpDef> ElementwiseOps() {
  std::vector<OpDef> ops;
  ops.push_back(
      {.name = "add",
       .infer = InferBinary,
       .kernel =
           ResultOf([](KernelContext& c) { return Add(c.Take(0), c.Take(1)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{dy[0],
                                     SumToOperand(b, dy[0], node.inputs[1])};
       }});
  ops.push_back(
      {.name = "subtract",
       .infer = InferBinary,
       .kernel = ResultOf(
           [](KernelContext& c) { return Subtract(c.Take(0), c.Take(1)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             dy[0], b.Scale(SumToOperand(b, dy[0], node.inputs[1]), -1.0)};
       }});
  // With y = a / b: da = dy / b, db = -da y.
  ops.push_back(
      {.name = "divide",
       .infer = InferBinary,
       .kernel = ResultOf(
           [](KernelContext& c) { return Divide(c.Take(0), c.Take(1)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         const ValueId da = b.Divide(dy[0], node.inputs[1]);
         const ValueId product = b.Multiply(da, node.outputs[0]);
         return std::vector<ValueId>{
             da, b.Scale(SumToOperand(b, product, node.inputs[1]), -1.0)};
       }});
  ops.push_back(
      {.name = "multiply",
       .infer = InferBinary,
       .kernel = ResultOf(
           [](KernelContext& c) { return Multiply(c.Take(0), c.Take(1)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.Multiply(dy[0], node.inputs[1]),
             SumToOperand(b, b.Multiply(dy[0], node.inputs[0]),
                          node.inputs[1])};
       }});
  ops.push_back(
      {.name = "scale",
       .infer = InferScale,
       .kernel = ResultOf(
           [](KernelContext& c) { return Scale(c.Take(0), FactorOf(c)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.Scale(dy[0], FloatAttribute(node.attributes, "factor"))};
       }});
  ops.push_back(
      {.name = "exp",
       .infer = InferSame,
       .kernel = ResultOf([](KernelContext& c) { return Exp(c.Take(0)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{b.Multiply(dy[0], node.outputs[0])};
       }});
  // The gradient takes the operand's type, so it is rounded where values are.
  ops.push_back(
      {.name = "cast",
       .infer = InferCast,
       .kernel = ResultOf([](KernelContext& c) {
         return Cast(c.operands[0], c.result_types[0].type);
       }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.Cast(dy[0], b.type(node.inputs[0]).type)};
       }});
  ops.push_back(
      {.name = "relu",
       .infer = InferRelu,
       .kernel = ResultOf([](KernelContext& c) { return Relu(c.Take(0)); }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.AddOne("relu_gradient",
                      {node.outputs[0], b.Cast(dy[0], ElementType::kFloat32)})};
       }});
  ops.push_back({.name = "relu_gradient",
                 .infer = InferReluGradient,
                 .kernel = ResultOf([](KernelContext& c) {
                   return ReluGradient(c.Take(0), c.Take(1));
                 })});
  // The mask depends on key and salt alone, so the gradient is the same
  // operator on the gradient.
  ops.push_back(
      {.name = "dropout",
       .infer = InferDropout,
       .kernel = ResultOf([](KernelContext& c) {
         return Dropout(c.Take(0), FloatAttribute(c.attributes(), "rate"),
                        DropoutKeyOf(c));
       }),
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.AddOne("dropout", {dy[0], node.inputs[1]}, node.attributes),
             kNoValue};
       }});
  ops.push_back(
      {.name = "dropout_rows",
       .infer = InferDropoutRows,
       .kernel = [](KernelContext& c) -> absl::Status {
         for (const int32_t row :
              std::as_const(c.operands[1]).span<int32_t>()) {
           if (row < 0) {
             return absl::InvalidArgumentError(
                 absl::StrCat("rows must not be negative, got ", row));
           }
         }
         c.results[0] = DropoutRows(c.Take(0), c.operands[1],
                                    FloatAttribute(c.attributes(), "rate"),
                                    DropoutKeyOf(c));
         return absl::OkStatus();
       },
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.AddOne("dropout_rows", {dy[0], node.inputs[1], node.inputs[2]},
                      node.attributes),
             kNoValue, kNoValue};
       }});
  return ops;
}

}  // namespace gshard
