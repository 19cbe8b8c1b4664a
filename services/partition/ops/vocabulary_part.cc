// embedding_part, embedding_gradient_part, cross_entropy_sums,
// cross_entropy_of_sums, cross_entropy_gradient_part.

#include "services/ops/vocabulary_part.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/kernel_calls.h"
#include "services/ops/embedding.h"
#include "services/partition/ops/part_ops.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

// The words of dimension `dim` of a tensor with the sizes `local`.
absl::StatusOr<VocabularyPart> Words(const KernelContext& c, const Dims& local,
                                     int dim) {
  ASSIGN_OR_RETURN(const PartPosition at, FindPosition(c, local));
  return VocabularyPart{.first = at.begin[dim], .size = at.whole[dim]};
}

template <typename Function>
auto AtRank2(Function infer) {
  return [infer](absl::Span<const ValueType> operands,
                 const Attributes& attributes) -> ResultTypes {
    RETURN_IF_ERROR(ExpectPosition(attributes, 2));
    return infer(operands, attributes);
  };
}

// Infers like another operator.
auto InferAs(const char* op) {
  return AtRank2(
      [op](absl::Span<const ValueType> operands, const Attributes& attributes) {
        return FindOp(op)->infer(operands, attributes);
      });
}

absl::Status EmbeddingKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const VocabularyPart part,
                   Words(c, c.operands[0].dims(), 0));
  RETURN_IF_ERROR(CheckIds(c.operands[1], part.size));
  c.results[0] = EmbeddingPart(c.operands[0], c.operands[1], part);
  return absl::OkStatus();
}

absl::Status EmbeddingGradientKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const Dims table, c.ResultDims(0));
  ASSIGN_OR_RETURN(const VocabularyPart part, Words(c, table, 0));
  RETURN_IF_ERROR(CheckIds(c.operands[1], part.size));
  c.results[0] =
      EmbeddingPartGradient(c.operands[0], c.operands[1], table[0], part);
  return absl::OkStatus();
}

ResultTypes InferSums(absl::Span<const ValueType> operands, const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  const Dim& rows = operands[0].shape[0];
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  RETURN_IF_ERROR(ExpectShape(operands, 1, {rows}));
  RETURN_IF_ERROR(ExpectFloat(operands, 2));
  RETURN_IF_ERROR(ExpectShape(operands, 2, {rows}));
  return std::vector<ValueType>{{ElementType::kFloat32, {rows, 3}}};
}

absl::Status CheckLabels(const Tensor& labels, int64_t words) {
  for (const int32_t label : labels.span<int32_t>()) {
    if (label >= words) {
      return absl::InvalidArgumentError(
          absl::StrCat("labels must lie below ", words, ", got ", label));
    }
  }
  return absl::OkStatus();
}

absl::Status SumsKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const VocabularyPart part,
                   Words(c, c.operands[0].dims(), 1));
  RETURN_IF_ERROR(CheckLabels(c.operands[1], part.size));
  c.results[0] =
      CrossEntropySums(c.operands[0], c.operands[1], c.operands[2], part);
  return absl::OkStatus();
}

ResultTypes InferOfSums(absl::Span<const ValueType> operands,
                        const Attributes& attributes) {
  for (const char* name : {"smoothing", "z_loss"}) {
    RETURN_IF_ERROR(ExpectAttribute<double>(attributes, name));
  }
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "words"));
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectRank(operands, 1, 1));
  const Dim& rows = operands[1].shape[0];
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectShape(operands, 0, {rows, 3}));
  RETURN_IF_ERROR(ExpectFloat(operands, 1));
  RETURN_IF_ERROR(ExpectInt(operands, 2));
  RETURN_IF_ERROR(ExpectShape(operands, 2, {rows}));
  return std::vector<ValueType>{{ElementType::kFloat32, {}},
                                {ElementType::kFloat32, {rows}}};
}

absl::Status OfSumsKernel(KernelContext& c) {
  CrossEntropyResult result = CrossEntropyOfSums(
      c.operands[0], c.operands[1], c.operands[2],
      IntAttribute(c.attributes(), "words"), CrossEntropyOptionsOf(c));
  c.results[0] = std::move(result.loss_sum);
  c.results[1] = std::move(result.log_sum_exp);
  return absl::OkStatus();
}

absl::Status GradientKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const VocabularyPart part,
                   Words(c, c.operands[0].dims(), 1));
  RETURN_IF_ERROR(CheckLabels(c.operands[1], part.size));
  const CrossEntropyOptions options = CrossEntropyOptionsOf(c);
  c.results[0] = CrossEntropyPartGradient(
      c.Take(0), c.operands[1], c.operands[2], options, c.operands[3], part);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> VocabularyPartOps() {
  return {{.name = "embedding_part",
           .infer = InferAs("embedding"),
           .kernel = EmbeddingKernel},
          {.name = "embedding_gradient_part",
           .infer = InferAs("embedding_gradient"),
           .kernel = EmbeddingGradientKernel},
          {.name = "cross_entropy_sums",
           .infer = AtRank2(InferSums),
           .kernel = SumsKernel},
          {.name = "cross_entropy_of_sums",
           .infer = InferOfSums,
           .kernel = OfSumsKernel},
          {.name = "cross_entropy_gradient_part",
           .infer = InferAs("cross_entropy_gradient"),
           .kernel = GradientKernel}};
}

}  // namespace gshard
