// SegmentRunner: runs the segments of a program on other processes. An
// extension of a run, see run_context.h.

#ifndef SERVICES_SEGMENTS_SEGMENT_RUNNER_H_
#define SERVICES_SEGMENTS_SEGMENT_RUNNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/graph/program.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Rows [begin, end).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const RowRange&) const = default;
};

class SegmentRunner {
 public:
  virtual ~SegmentRunner() = default;

  // Calls `node` (a call_segment, see call_segment.h) with its operands and
  // returns its results in the order of its outputs.
  virtual absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) = 0;

  // Rows of the latest Call()'s results that no worker could compute, and that
  // are zeros: ascending and disjoint. Most runners fail instead.
  virtual absl::Span<const RowRange> lost_rows() const { return {}; }
};

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_SEGMENT_RUNNER_H_
