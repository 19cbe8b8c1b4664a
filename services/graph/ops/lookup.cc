// embedding, embedding_gradient, sinusoidal_positions.

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/embedding.h"
#include "services/ops/positions.h"

namespace gshard {
namespace {

ValueType WithLast(const ValueType& ids, const Dim& last) {
  ValueType type{ElementType::kFloat32, ids.shape};
  type.shape.push_back(last);
  return type;
}

ResultTypes InferEmbedding(absl::Span<const ValueType> operands,
                           const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  if (operands[0].type != ElementType::kInt8) {
    RETURN_IF_ERROR(ExpectFloatOrBFloat(operands, 0));
  }
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  return std::vector<ValueType>{WithLast(operands[1], operands[0].shape[1])};
}

// dy [..., M], ids [...] -> [vocabulary, M].
ResultTypes InferEmbeddingGradient(absl::Span<const ValueType> operands,
                                   const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  const Shape& shape = ShapeAttribute(attributes, "shape");
  if (shape.size() != 2 || !shape[0].is_static()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'shape' must be [V, M] with a static V, got ", ShapeToString(shape)));
  }
  RETURN_IF_ERROR(
      ExpectShape(operands, 0, WithLast(operands[1], shape[1]).shape));
  return std::vector<ValueType>{{ElementType::kFloat32, shape}};
}

ResultTypes InferPositions(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectInt(operands, 0));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "width"));
  const int64_t width = IntAttribute(attributes, "width");
  if (width < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'width' must be at least 1, got ", width));
  }
  return std::vector<ValueType>{WithLast(operands[0], width)};
}

int64_t Vocabulary(const KernelContext& context) {
  return ShapeAttribute(context.attributes(), "shape")[0].size();
}

}  // namespace

std::vector<OpDef> LookupOps() {
  std::vector<OpDef> ops;
  ops.push_back(
      {.name = "embedding",
       .infer = InferEmbedding,
       .kernel = [](KernelContext& c) -> absl::Status {
         RETURN_IF_ERROR(CheckIds(c.operands[1], c.operands[0].dim(0)));
         c.results[0] = Embedding(c.operands[0], c.operands[1]);
         return absl::OkStatus();
       },
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.AddOne("embedding_gradient", {dy[0], node.inputs[1]},
                      {{"shape", b.type(node.inputs[0]).shape}}),
             kNoValue};
       }});
  ops.push_back({.name = "embedding_gradient",
                 .infer = InferEmbeddingGradient,
                 .kernel = [](KernelContext& c) -> absl::Status {
                   RETURN_IF_ERROR(CheckIds(c.operands[1], Vocabulary(c)));
                   c.results[0] = EmbeddingGradient(
                       c.operands[0], c.operands[1], Vocabulary(c));
                   return absl::OkStatus();
                 }});
  ops.push_back({.name = "sinusoidal_positions",
                 .infer = InferPositions,
                 .kernel = ResultOf([](KernelContext& c) {
                   return SinusoidalPositions(
                       c.operands[0], IntAttribute(c.attributes(), "width"));
                 })});
  return ops;
}

}  // namespace gshard
