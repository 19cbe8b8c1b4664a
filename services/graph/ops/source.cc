// Sources of values: input, parameter, constant.

#include <algorithm>

#include "services/base/status_macros.h"
#include "services/graph/ops/standard_ops.h"

namespace gshard {
namespace {

ResultTypes InferInput(absl::Span<const ValueType> operands,
                       const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "name"));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "type"));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  ASSIGN_OR_RETURN(const ElementType type,
                   ParseElementType(StringAttribute(attributes, "type")));
  if (type == ElementType::kInt8) {
    return absl::InvalidArgumentError("expected i8 of parameters only");
  }
  return std::vector<ValueType>{{type, ShapeAttribute(attributes, "shape")}};
}

ResultTypes InferParameter(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "name"));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  ASSIGN_OR_RETURN(const ElementType type, WeightTypeAttribute(attributes));
  return std::vector<ValueType>{{type, ShapeAttribute(attributes, "shape")}};
}

ResultTypes InferConstant(absl::Span<const ValueType> operands,
                          const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "value"));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  return std::vector<ValueType>{
      {ElementType::kFloat32, ShapeAttribute(attributes, "shape")}};
}

absl::Status ConstantKernel(KernelContext& context) {
  ASSIGN_OR_RETURN(const Dims dims, context.ResultDims(0));
  Tensor filled(ElementType::kFloat32, dims);
  std::fill_n(
      filled.f32(), filled.size(),
      static_cast<float>(FloatAttribute(context.attributes(), "value")));
  context.results[0] = std::move(filled);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> SourceOps() {
  // Input and parameter have no kernel: the executor feeds them.
  return {
      {.name = "input", .infer = InferInput, .kernel = nullptr},
      {.name = "parameter", .infer = InferParameter, .kernel = nullptr},
      {.name = "constant", .infer = InferConstant, .kernel = ConstantKernel}};
}

}  // namespace gshard
