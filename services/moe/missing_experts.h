// Renormalizes combine weights for choices whose rows were not computed because
// the expert has no holder left: such a choice counts as overflowed, and its
// weight goes to the token's other choice, if that has a row. A token that lost
// both is carried by the residual alone.
//
// Letters: T tokens, R rows, M width.

#ifndef SERVICES_MOE_MISSING_EXPERTS_H_
#define SERVICES_MOE_MISSING_EXPERTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/graph/builder.h"
#include "services/graph/op.h"
#include "services/segments/segment_runner.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct RenormalizedWeights {
  Tensor weight;  // f32[T, 2]; the argument itself if nothing is lost
  Tensor lost;    // i32[T]: number of lost choices, 0 to 2
};

// `row_source` i32[R] from PlanDispatch, `weight` f32[T, 2] with 0 for choices
// without a row. Errors: InvalidArgument for other shapes, ranges outside [0,
// R), or a row source that is not a choice.
absl::StatusOr<RenormalizedWeights> RenormalizeForMissingExperts(
    const Tensor& row_source, const Tensor& weight,
    absl::Span<const RowRange> lost_rows);

// The operator renormalize_choices: rows f32 or bf16[R, M], row_source i32[R],
// weight [T, 2] -> weight [T, 2], lost i32[T]. The lost rows come from the
// segment runner (SegmentRunner::lost_rows), none without one. In training,
// which does not continue without experts, it is the identity on weights.
struct RenormalizedValues {
  ValueId weight = kNoValue;
  ValueId lost = kNoValue;
};
RenormalizedValues RenormalizeWeights(Builder& builder, ValueId rows,
                                      ValueId row_source, ValueId weight);

// Its kernel, given RenormalizeForMissingExperts() or an equivalent function.
using RenormalizeFunction = absl::StatusOr<RenormalizedWeights> (*)(
    const Tensor& row_source, const Tensor& weight,
    absl::Span<const RowRange> lost_rows);
Kernel RenormalizeKernel(RenormalizeFunction renormalize);

// For RegisterMoeOps().
std::vector<OpDef> RenormalizeOps();

}  // namespace gshard

#endif  // SERVICES_MOE_MISSING_EXPERTS_H_
