// reduce_max, reduce_max_gradient.

#include "services/ops/reduce_max.h"

#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/dims.h"
#include "services/graph/ops/standard_ops.h"

namespace gshard {
namespace {

// x, y = reduce_max(x), dy.
ResultTypes InferReduceMaxGradient(absl::Span<const ValueType> operands,
                                   const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  ASSIGN_OR_RETURN(const std::vector<ValueType> y,
                   InferReduction(operands.first(1), attributes));
  for (const int i : {1, 2}) {
    RETURN_IF_ERROR(ExpectFloat(operands, i));
    RETURN_IF_ERROR(ExpectShape(operands, i, y[0].shape));
  }
  return std::vector<ValueType>{operands[0]};
}

OperandGradients GradientOfReduceMax(Builder& b, const Node& node,
                                     absl::Span<const ValueId> dy) {
  return std::vector<ValueId>{b.AddOne("reduce_max_gradient",
                                       {node.inputs[0], node.outputs[0], dy[0]},
                                       node.attributes)};
}

}  // namespace

std::vector<OpDef> ReduceMaxOps() {
  return {{.name = "reduce_max",
           .infer = InferReduction,
           .kernel = ResultOf([](KernelContext& c) {
             return ReduceMax(c.operands[0], DimsOf(c));
           }),
           .gradient = GradientOfReduceMax},
          {.name = "reduce_max_gradient",
           .infer = InferReduceMaxGradient,
           .kernel = ResultOf([](KernelContext& c) {
             return ReduceMaxGradient(c.operands[0], c.operands[1],
                                      c.operands[2], DimsOf(c));
           })}};
}

}  // namespace gshard
