// Reference for services/moe/missing_experts.h, in O(T * R).

#ifndef TESTS_REFERENCE_MISSING_EXPERTS_H_
#define TESTS_REFERENCE_MISSING_EXPERTS_H_

#include "services/moe/missing_experts.h"

namespace gshard::reference {

absl::StatusOr<RenormalizedWeights> RenormalizeForMissingExperts(
    const Tensor& row_source, const Tensor& weight,
    absl::Span<const RowRange> lost_rows);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_MISSING_EXPERTS_H_
