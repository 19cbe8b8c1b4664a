// einsum.

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/einsum.h"

namespace gshard {
namespace {

// Binds letters to the operands' sizes, which must agree.
absl::Status BindLetters(absl::string_view letters,
                         absl::Span<const ValueType> operands, int i,
                         std::map<char, Dim>& sizes) {
  RETURN_IF_ERROR(ExpectRank(operands, i, letters.size()));
  for (size_t d = 0; d < letters.size(); ++d) {
    const auto [found, added] = sizes.emplace(letters[d], operands[i].shape[d]);
    if (!added && !(found->second == operands[i].shape[d])) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", std::string(1, letters[d]), "' is ",
                       found->second.ToString(), " in operand 0 and ",
                       operands[i].shape[d].ToString(), " in operand 1"));
    }
  }
  return absl::OkStatus();
}

ResultTypes InferEinsum(absl::Span<const ValueType> operands,
                        const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFactorAndWeights(operands, 0, 1));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "equation"));
  ASSIGN_OR_RETURN(const EinsumSpec spec,
                   ParseEinsum(StringAttribute(attributes, "equation")));
  std::map<char, Dim> sizes;
  RETURN_IF_ERROR(BindLetters(spec.a, operands, 0, sizes));
  RETURN_IF_ERROR(BindLetters(spec.b, operands, 1, sizes));
  Shape shape;
  for (const char letter : spec.result) {
    shape.push_back(sizes.find(letter)->second);
  }
  return std::vector<ValueType>{{ElementType::kFloat32, std::move(shape)}};
}

OperandGradients EinsumGradient(Builder& b, const Node& node,
                                absl::Span<const ValueId> dy) {
  ASSIGN_OR_RETURN(const EinsumSpec spec,
                   ParseEinsum(StringAttribute(node.attributes, "equation")));
  const ValueId factor = b.Cast(dy[0], b.type(node.inputs[0]).type);
  return std::vector<ValueId>{
      b.Einsum(GradientOfA(spec).ToString(), factor, node.inputs[1]),
      b.Einsum(GradientOfB(spec).ToString(), node.inputs[0], factor)};
}

}  // namespace

std::vector<OpDef> ContractionOps() {
  return {{.name = "einsum",
           .infer = InferEinsum,
           .kernel = [](KernelContext& c) { return CallEinsum(c, Einsum); },
           .gradient = EinsumGradient}};
}

}  // namespace gshard
