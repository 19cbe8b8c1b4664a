#include "services/exchange/exchange_plan.h"

#include <algorithm>

#include "services/cluster/choose_replicas.h"

namespace gshard {

ExchangePlan PlanExchange(const ExpertRows& rows,
                          absl::Span<const int32_t> experts,
                          absl::Span<const PieceHolder> holders,
                          bool idle_too) {
  using State = WorkerHealth::State;
  std::vector<int32_t> sizes(rows.num_experts(), 0);
  for (const int32_t expert : experts) sizes[expert] = rows.sizes()[expert];
  std::vector<std::vector<int32_t>> shares(holders.size());
  ExchangePlan plan;
  plan.no_holder.assign(experts.begin(), experts.end());
  // Slow ones only where there are no others.
  for (const State worst : {State::kGood, State::kSlow}) {
    std::vector<ReplicaHolder> candidates;
    for (const PieceHolder& holder : holders) {
      candidates.push_back({.experts = holder.experts,
                            .outstanding_rows = holder.outstanding_rows,
                            .avoided = holder.health > worst || holder.tried});
    }
    const std::vector<int32_t> chosen = ChooseReplicas(sizes, candidates);
    std::vector<int32_t> left;
    for (const int32_t expert : plan.no_holder) {
      if (chosen[expert] < 0) {
        left.push_back(expert);
        continue;
      }
      shares[chosen[expert]].push_back(expert);
      sizes[expert] = 0;
    }
    plan.no_holder = std::move(left);
    if (plan.no_holder.empty()) break;
  }
  for (size_t h = 0; h < holders.size(); ++h) {
    if (shares[h].empty() && !idle_too) continue;
    std::sort(shares[h].begin(), shares[h].end());
    std::vector<RowRange> ranges = rows.RangesOf(shares[h]);
    const int64_t count = CountRows(ranges);
    plan.pieces.push_back({.holder = static_cast<int>(h),
                           .experts = std::move(shares[h]),
                           .ranges = std::move(ranges),
                           .rows = count});
  }
  return plan;
}

absl::StatusOr<Tensor> PartOf(const Tensor& operand, Division division,
                              const ExpertRows& rows, const Piece& piece,
                              absl::Span<const int32_t> held) {
  if (division == Division::kWhole) return operand;
  if (division == Division::kRows) {
    return TakeRows(operand, rows.total(), piece.ranges);
  }
  Tensor sizes =
      Tensor::Zeros(ElementType::kInt32, {static_cast<int64_t>(held.size())});
  for (size_t k = 0; k < held.size(); ++k) {
    if (std::binary_search(piece.experts.begin(), piece.experts.end(),
                           held[k])) {
      sizes.i32()[k] = rows.sizes()[held[k]];
    }
  }
  return sizes;
}

}  // namespace gshard
