// The rows of a ragged batch by expert: their ranges, and copying parts of them
// out and back.
//
// Rows are sorted by expert, so those of adjacent experts form one range.
//
// Letters: E experts, R rows.

#ifndef SERVICES_SEGMENTS_EXPERT_ROWS_H_
#define SERVICES_SEGMENTS_EXPERT_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/graph/op.h"
#include "services/segments/segment_runner.h"
#include "services/tensor/tensor.h"

namespace gshard {

class ExpertRows {
 public:
  // `group_sizes` is i32[E]. Errors: InvalidArgument if it is not, or a size
  // is negative.
  static absl::StatusOr<ExpertRows> Create(const Tensor& group_sizes);

  int64_t num_experts() const { return group_sizes_.dim(0); }
  int64_t total() const { return end_of_.empty() ? 0 : end_of_.back(); }

  // i32[E].
  const Tensor& group_sizes() const { return group_sizes_; }
  absl::Span<const int32_t> sizes() const {
    return group_sizes_.span<int32_t>();
  }

  // The rows of one expert.
  RowRange range(int32_t expert) const {
    return {end_of_[expert] - sizes()[expert], end_of_[expert]};
  }

  // The rows of several experts, in their order; adjacent ranges are merged and
  // empty ones omitted. REQUIRES: all are in [0, E).
  std::vector<RowRange> RangesOf(absl::Span<const int32_t> experts) const;

 private:
  Tensor group_sizes_;
  std::vector<int64_t> end_of_;  // [E]
};

int64_t CountRows(absl::Span<const RowRange> ranges);

// Copies the ranges of `whole` into one tensor, or returns a view of a single
// range. Errors: InvalidArgument if `whole` does not have `total` rows.
absl::StatusOr<Tensor> TakeRows(const Tensor& whole, int64_t total,
                                absl::Span<const RowRange> ranges);

// The inverse. REQUIRES: `part` has as many rows as the ranges, of the type and
// row size of `whole`.
void PutRows(const Tensor& part, absl::Span<const RowRange> ranges,
             Tensor& whole);

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_EXPERT_ROWS_H_
