#include "tests/reference/missing_experts.h"

#include "services/base/status_macros.h"

namespace gshard::reference {

absl::StatusOr<RenormalizedWeights> RenormalizeForMissingExperts(
    const Tensor& row_source, const Tensor& weight,
    absl::Span<const RowRange> lost_rows) {
  // The fast implementation checks the arguments for both.
  RETURN_IF_ERROR(
      gshard::RenormalizeForMissingExperts(row_source, weight, lost_rows)
          .status());
  RenormalizedWeights renormalized{
      .weight = Tensor::Zeros(ElementType::kFloat32, weight.dims()),
      .lost = Tensor::Zeros(ElementType::kInt32, {weight.dim(0)})};
  const auto is_lost = [&](int64_t choice) {
    for (const RowRange& range : lost_rows) {
      for (int64_t r = range.begin; r < range.end; ++r) {
        if (row_source.i32()[r] == choice) return true;
      }
    }
    return false;
  };
  for (int64_t t = 0; t < weight.dim(0); ++t) {
    const float* const before = weight.f32() + 2 * t;
    const bool lost[2] = {is_lost(2 * t), is_lost(2 * t + 1)};
    renormalized.lost.i32()[t] = lost[0] + lost[1];
    for (int k = 0; k < 2; ++k) {
      if (lost[k]) continue;
      const bool takes_over = lost[1 - k] && before[k] > 0.0f;
      renormalized.weight.f32()[2 * t + k] =
          takes_over ? before[0] + before[1] : before[k];
    }
  }
  return renormalized;
}

}  // namespace gshard::reference
