#include "services/exchange/expert_exchange.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/exchange/exchange_call.h"

namespace gshard {

absl::StatusOr<std::vector<Tensor>> ExpertExchange::Call(
    const Node& node, absl::Span<const Tensor> operands) {
  using Clock = std::chrono::steady_clock;
  lost_rows_.clear();
  const std::string& segment = StringAttribute(node.attributes, "segment");
  const auto call = calls_.find(segment);
  if (call == calls_.end()) {
    return absl::InternalError(
        absl::StrCat("segment ", segment, " is not of the model's programs"));
  }
  ASSIGN_OR_RETURN(const ExpertRows rows, ExpertRows::Create(operands[0]));
  if (rows.num_experts() != policy_.num_experts()) {
    return absl::InternalError(
        absl::StrCat("expected rows of ", policy_.num_experts(),
                     " experts, got ", rows.num_experts()));
  }
  const Clock::time_point start = Clock::now();
  ExchangeCall exchange(policy_, run_, call->second, operands, rows, pieces_,
                        mailbox_);
  auto results = exchange.Run();
  waited_ += std::chrono::duration_cast<std::chrono::microseconds>(
      Clock::now() - start);
  pieces_ += exchange.num_pieces();
  bytes_ += exchange.bytes();
  if (!results.ok()) return results.status();
  lost_rows_ = rows.RangesOf(exchange.lost());
  policy_.metrics().lost_choices.Increment(
      static_cast<double>(CountRows(lost_rows_)));
  return results;
}

}  // namespace gshard
