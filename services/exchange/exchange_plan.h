// The plan of an exchange: which holder computes which rows of a call, and the
// tensors sent to it. Pure.
//
// Rows are sorted by expert, so a holder's piece consists of the ranges of its
// experts' rows. With contiguous placements that is a single range, which is
// passed on as a view.

#ifndef SERVICES_EXCHANGE_EXCHANGE_PLAN_H_
#define SERVICES_EXCHANGE_EXCHANGE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/cluster/choose_replicas.h"
#include "services/segments/call_segment.h"
#include "services/segments/expert_rows.h"

namespace gshard {

// The rows for one holder.
struct RowPiece {
  int holder = 0;
  std::vector<int32_t> experts;  // those that have rows, ascending
  std::vector<RowRange> ranges;  // of these experts
  int64_t rows = 0;
};

struct RowPlan {
  std::vector<RowPiece> pieces;    // by holder
  std::vector<int32_t> no_holder;  // experts without an available holder
};

// Assigns each of `experts`, ascending, to one of `holders`; see
// ChooseReplicas. With `idle_too`, holders without rows get a piece as well.
RowPlan PlanExchange(const ExpertRows& rows, absl::Span<const int32_t> experts,
                     absl::Span<const ReplicaHolder> holders, bool idle_too);

// The piece's part of an operand of the call; a view where possible. `held` are
// all experts of the holder: in the group sizes, those outside the piece have
// no rows.
//
// Errors: InvalidArgument if the operand does not have the call's rows.
absl::StatusOr<Tensor> PieceOf(const Tensor& operand, Division division,
                               const ExpertRows& rows, const RowPiece& piece,
                               absl::Span<const int32_t> held);

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_EXCHANGE_PLAN_H_
