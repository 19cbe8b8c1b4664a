#include "services/exchange/exchange_plan.h"

#include <algorithm>
#include <utility>

namespace gshard {

RowPlan PlanExchange(const ExpertRows& rows, absl::Span<const int32_t> experts,
                     absl::Span<const ReplicaHolder> holders, bool idle_too) {
  std::vector<int32_t> sizes(rows.num_experts(), 0);
  for (const int32_t expert : experts) sizes[expert] = rows.sizes()[expert];
  const std::vector<int32_t> chosen = ChooseReplicas(sizes, holders);
  RowPlan plan;
  std::vector<RowPiece> pieces(holders.size());
  for (const int32_t expert : experts) {
    std::vector<int32_t>& to =
        chosen[expert] < 0 ? plan.no_holder : pieces[chosen[expert]].experts;
    to.push_back(expert);
  }
  for (size_t h = 0; h < pieces.size(); ++h) {
    RowPiece& piece = pieces[h];
    if (piece.experts.empty() && !idle_too) continue;
    piece.holder = static_cast<int>(h);
    piece.ranges = rows.RangesOf(piece.experts);
    piece.rows = CountRows(piece.ranges);
    plan.pieces.push_back(std::move(piece));
  }
  return plan;
}

absl::StatusOr<Tensor> PieceOf(const Tensor& operand, Division division,
                               const ExpertRows& rows, const RowPiece& piece,
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
