#include "services/moe/missing_experts.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

absl::Status CheckArguments(const Tensor& row_source, const Tensor& weight,
                            absl::Span<const RowRange> lost_rows) {
  if (row_source.type() != ElementType::kInt32 || row_source.rank() != 1 ||
      weight.type() != ElementType::kFloat32 || weight.rank() != 2 ||
      weight.dim(1) != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected row_source i32[R] and weight f32[T, 2], got ",
                     row_source.TypeString(), " and ", weight.TypeString()));
  }
  int64_t end = 0;
  for (const RowRange& range : lost_rows) {
    if (range.begin < end || range.end < range.begin ||
        range.end > row_source.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected ascending ranges of ", row_source.size(), " rows, got [",
          range.begin, ", ", range.end, ") after ", end));
    }
    end = range.end;
    for (int64_t r = range.begin; r < range.end; ++r) {
      const int32_t source = row_source.i32()[r];
      if (source < 0 || source >= weight.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("expected row sources in [0, ", weight.size(),
                         "), got ", source, " in row ", r));
      }
    }
  }
  return absl::OkStatus();
}

ResultTypes InferSettle(absl::Span<const ValueType> operands,
                        const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectFloatOrBFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  RETURN_IF_ERROR(ExpectShape(operands, 1, {operands[0].shape[0]}));
  RETURN_IF_ERROR(ExpectFloat(operands, 2));
  RETURN_IF_ERROR(ExpectRank(operands, 2, 2));
  const Dim& tokens = operands[2].shape[0];
  RETURN_IF_ERROR(ExpectShape(operands, 2, {tokens, 2}));
  return std::vector<ValueType>{operands[2], {ElementType::kInt32, {tokens}}};
}

}  // namespace

absl::StatusOr<RenormalizedWeights> RenormalizeForMissingExperts(
    const Tensor& row_source, const Tensor& weight,
    absl::Span<const RowRange> lost_rows) {
  RETURN_IF_ERROR(CheckArguments(row_source, weight, lost_rows));
  RenormalizedWeights renormalized{
      .weight = weight,
      .lost = Tensor::Zeros(ElementType::kInt32, {weight.dim(0)})};
  if (lost_rows.empty()) return renormalized;
  renormalized.weight = weight.Clone();
  float* const w = renormalized.weight.f32();
  for (const RowRange& range : lost_rows) {
    for (int64_t r = range.begin; r < range.end; ++r) {
      const int32_t choice = row_source.i32()[r];
      const int32_t other = choice ^ 1;
      // If the other is lost, too, or has no row, its weight is 0 and stays 0.
      if (w[other] > 0.0f) {
        w[other] = weight.f32()[choice & ~1] + weight.f32()[choice | 1];
      }
      w[choice] = 0.0f;
      ++renormalized.lost.i32()[choice / 2];
    }
  }
  return renormalized;
}

Kernel RenormalizeKernel(RenormalizeFunction renormalize) {
  return [renormalize](KernelContext& c) -> absl::Status {
    absl::Span<const RowRange> lost_rows;
    const auto* const segments = c.run.Get<SegmentRunner>();
    if (segments != nullptr) lost_rows = segments->lost_rows();
    ASSIGN_OR_RETURN(RenormalizedWeights renormalized,
                     renormalize(c.operands[1], c.operands[2], lost_rows));
    c.results[0] = std::move(renormalized.weight);
    c.results[1] = std::move(renormalized.lost);
    return absl::OkStatus();
  };
}

RenormalizedValues RenormalizeWeights(Builder& builder, ValueId rows,
                                      ValueId row_source, ValueId weight) {
  const std::vector<ValueId> results =
      builder.AddNode("renormalize_choices", {rows, row_source, weight}, {});
  return {.weight = results[0], .lost = results[1]};
}

std::vector<OpDef> RenormalizeOps() {
  return {{.name = "renormalize_choices",
           .infer = InferSettle,
           .kernel = RenormalizeKernel(RenormalizeForMissingExperts),
           // In training no rows are lost.
           .gradient = [](Builder&, const Node&,
                          absl::Span<const ValueId> dy) -> OperandGradients {
             return std::vector<ValueId>{kNoValue, kNoValue, dy[0]};
           }}};
}

}  // namespace gshard
