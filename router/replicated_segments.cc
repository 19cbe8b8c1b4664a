#include "router/replicated_segments.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "router/replicated_call.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// Replies without a worker that says how wide they are: the program does.
absl::StatusOr<std::vector<Tensor>> Zeros(const SegmentCall& call,
                                          int64_t rows) {
  std::vector<Tensor> results;
  for (int64_t r = 0; r < call.num_replies; ++r) {
    Dims dims = {rows};
    const Shape& shape = call.reply_types[r].shape;
    for (size_t d = 1; d < shape.size(); ++d) {
      if (!shape[d].is_static()) {
        return absl::UnimplementedError(
            absl::StrCat("reply ", r, " of segment ", call.segment,
                         " has no width: ", ShapeToString(shape)));
      }
      dims.push_back(shape[d].size());
    }
    results.push_back(Tensor::Zeros(call.reply_types[r].type, std::move(dims)));
  }
  return results;
}

}  // namespace

ReplicatedSegments::ReplicatedSegments(
    ReplicaSet& replicas, std::chrono::steady_clock::time_point deadline,
    Cancellation& cancellation)
    : replicas_(replicas), deadline_(deadline), cancellation_(cancellation) {}

absl::StatusOr<std::vector<Tensor>> ReplicatedSegments::Call(
    const Node& node, absl::Span<const Tensor> operands) {
  lost_rows_.clear();
  SegmentCall call = GetSegmentCall(node);
  ASSIGN_OR_RETURN(const ExpertRows rows, ExpertRows::Create(operands[0]));
  if (rows.num_experts() != replicas_.num_experts()) {
    return absl::InternalError(
        absl::StrCat("expected rows of ", replicas_.num_experts(),
                     " experts, got ", rows.num_experts()));
  }
  if (rows.total() == 0) return Zeros(call, 0);
  ReplicatedCall replicated(replicas_, call, operands, rows, deadline_);
  ASSIGN_OR_RETURN(std::vector<Tensor> results, replicated.Run(cancellation_));
  if (replicated.lost().empty()) return results;
  if (replicas_.live_experts() == 0) {
    return absl::UnavailableError("no expert worker of the model is left");
  }
  lost_rows_ = rows.RangesOf(replicated.lost());
  replicas_.metrics().lost_choices.Increment(
      static_cast<double>(CountRows(lost_rows_)));
  // No expert with rows was there.
  if (results.empty()) return Zeros(call, rows.total());
  return results;
}

}  // namespace gshard
