// ReplicatedSegments: the exchange with the expert workers of a served model,
// where an expert may be on several of them.
//
// A call's rows go to one replica each, chosen by the rows that workers have
// outstanding. What fails is sent to other replicas at once; what takes long is
// sent to another as well, and the first answer counts. Calls leave nothing
// behind, and a row has the same bits whoever computes it. Rows of experts of
// which no replica is left come back as zeros, and lost_rows() tells them.

#ifndef ROUTER_REPLICATED_SEGMENTS_H_
#define ROUTER_REPLICATED_SEGMENTS_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "router/cancellation.h"
#include "router/replica_set.h"
#include "services/graph/op.h"
#include "services/segments/segment_runner.h"

namespace gshard {

// Of one run; used by one thread, whose traces go along (trace_scope.h).
class ReplicatedSegments final : public SegmentRunner {
 public:
  // The run gives up at `deadline`. `cancellation` wakes a call that waits.
  ReplicatedSegments(ReplicaSet& replicas,
                     std::chrono::steady_clock::time_point deadline,
                     Cancellation& cancellation);

  // Errors: DeadlineExceeded; Cancelled; Unavailable if no worker of the model
  // is left at all; ResourceExhausted if a call is too long, or the queues of
  // all replicas are full; other errors of workers as they are.
  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) override;

  absl::Span<const RowRange> lost_rows() const override { return lost_rows_; }

 private:
  ReplicaSet& replicas_;
  const std::chrono::steady_clock::time_point deadline_;
  Cancellation& cancellation_;
  std::vector<RowRange> lost_rows_;
};

}  // namespace gshard

#endif  // ROUTER_REPLICATED_SEGMENTS_H_
