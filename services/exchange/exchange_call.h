// ExchangeCall: one call of a segment on the workers that hold its experts.
// Part of ExpertExchange, see there.

#ifndef SERVICES_EXCHANGE_EXCHANGE_CALL_H_
#define SERVICES_EXCHANGE_EXCHANGE_CALL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/exchange/exchange_plan.h"
#include "services/exchange/exchange_policy.h"
#include "services/exchange/expert_exchange.h"
#include "services/exchange/reply_mailbox.h"
#include "services/segments/call_segment.h"
#include "services/segments/expert_rows.h"

namespace gshard {

class ExchangeCall {
 public:
  using Time = ExchangePolicy::Time;

  // All arguments except `rows` must outlive this object. `first_piece` is the
  // number of the call's first piece; lower numbers mark late replies to
  // earlier calls.
  ExchangeCall(ExchangePolicy& policy, const ExchangeRun& run,
               const SegmentCall& call, absl::Span<const Tensor> operands,
               ExpertRows rows, int64_t first_piece,
               std::shared_ptr<ReplyMailbox> mailbox);
  // Cancels outstanding pieces.
  ~ExchangeCall();

  absl::StatusOr<std::vector<Tensor>> Run();

  // Valid after Run(): the experts whose rows are lost, ascending; the number
  // of pieces sent; and the bytes of tensors sent and received.
  const std::vector<int32_t>& lost() const { return lost_; }
  int64_t num_pieces() const { return static_cast<int64_t>(sent_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  using Replies = std::vector<Tensor>;

  // A piece of the call that was sent to one holder.
  struct SentPiece {
    ExchangePolicy::Group group = {};  // keeps `holding` alive
    const ReplicaHolding* holding = nullptr;
    RowPiece piece = {};
    uint64_t call_id = 0;
    Time sent = {};
    Time late_at = {};
    bool open = true;
    std::optional<Time> late_since = std::nullopt;  // OnLate() was called
  };

  // Sends the rows of `experts` to holders that were not tried for them yet. If
  // no holder remains for some rows, these are lost or the call fails; `why` is
  // the failure that led to this, if any.
  absl::Status Send(const std::vector<int32_t>& experts,
                    const absl::Status& why);
  // The same, except that experts without a remaining holder are not sent, and
  // returned.
  absl::StatusOr<std::vector<int32_t>> SendIfHeld(
      const std::vector<int32_t>& experts);
  // Whether the holder has failed lately or has an outstanding piece with some
  // of `experts`. A slow holder may be the only one left for these.
  bool IsTried(const ReplicaHolding& holding,
               const std::vector<int32_t>& experts) const;
  absl::Status Start(ExchangePolicy::Group group, RowPiece piece);
  absl::StatusOr<WorkerCall> CallOf(const ReplicaHolding& holding,
                                    const RowPiece& piece) const;

  absl::Status Take(ReplyMailbox::Reply reply);
  absl::Status Merge(const SentPiece& sent, Replies replies);
  // Sends the piece's rows to other holders; else they are lost.
  absl::Status Recover(const SentPiece& sent, const absl::Status& why);
  // Handles late pieces.
  absl::Status Look(Time now);
  void Close(SentPiece& sent, bool cancel);
  // The same for a piece that its worker has not answered.
  void GiveUp(SentPiece& sent);
  // Experts of the piece without an answer that no other outstanding piece has.
  std::vector<int32_t> Unanswered(const SentPiece& sent) const;
  // Adds a piece that is not late to in_time_, or takes it away.
  void Count(const SentPiece& sent, int32_t by);
  Time NextWakeup() const;
  absl::Status DeadlineError();
  Replies Finish();

  ExchangePolicy& policy_;
  const ExchangeRun& run_;
  const SegmentCall& call_;
  const absl::Span<const Tensor> operands_;
  const ExpertRows rows_;
  const int64_t first_piece_;
  const std::shared_ptr<ReplyMailbox> mailbox_;
  std::vector<SentPiece> sent_;
  int64_t open_ = 0;  // outstanding pieces
  // When those that failed may be called again; by stub and session.
  std::map<std::pair<const WorkerStub*, std::string>, Time> failed_;
  std::vector<int32_t> in_time_;  // [E] outstanding pieces that are not late
  std::vector<bool> answered_;    // [E]; true for experts without rows
  Replies results_;  // one for each reply; empty until its first rows arrive
  std::vector<int32_t> lost_;
  int64_t bytes_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_EXCHANGE_CALL_H_
