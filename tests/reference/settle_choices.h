// The definition of services/moe/settle_choices.h, in O(T * R).

#ifndef TESTS_REFERENCE_SETTLE_CHOICES_H_
#define TESTS_REFERENCE_SETTLE_CHOICES_H_

#include "services/moe/settle_choices.h"

namespace gshard::reference {

absl::StatusOr<SettledChoices> SettleChoices(
    const Tensor& row_source, const Tensor& weight,
    absl::Span<const RowRange> lost_rows);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_SETTLE_CHOICES_H_
