// ExchangeCall: one call of a segment on the workers that hold its experts.
// Part of ExpertExchange, which says what it does.

#ifndef SERVICES_EXCHANGE_EXCHANGE_CALL_H_
#define SERVICES_EXCHANGE_EXCHANGE_CALL_H_

#include <cstdint>
#include <memory>
#include <set>
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

  // All but `rows` outlive this. `first_piece` is the number of the call's
  // first piece, by which replies that come late for earlier calls are told.
  ExchangeCall(ExchangePolicy& policy, const ExchangeRun& run,
               const SegmentCall& call, absl::Span<const Tensor> operands,
               ExpertRows rows, int64_t first_piece,
               std::shared_ptr<ReplyMailbox> mailbox);
  // Cancels outstanding pieces.
  ~ExchangeCall();

  absl::StatusOr<std::vector<Tensor>> Run();

  // After Run(): experts whose rows are lost, ascending; pieces sent; bytes of
  // tensors that were sent and received.
  const std::vector<int32_t>& lost() const { return lost_; }
  int64_t num_pieces() const { return static_cast<int64_t>(sent_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  using Replies = std::vector<Tensor>;

  // A piece on its way to its holder and back.
  struct SentPiece {
    ExchangePolicy::Group group = {};  // keeps `holding`
    // The first of group->slices.
    const ReplicaHolding* holding = nullptr;
    RowPiece piece = {};
    std::vector<uint64_t> call_ids = {};  // of the slices
    std::vector<Replies> replies = {};    // of the slices
    int missing = 0;                      // of these
    Time sent = {};
    Time late_at = {};
    bool open = true;
    bool late = false;          // has been before
    bool others_asked = false;  // for the same rows

    absl::Span<const ReplicaHolding> slices() const {
      return {holding, static_cast<size_t>(group->slices)};
    }
  };

  // Sends the rows of `experts` to holders not yet tried for them. Rows without
  // a remaining holder fail the call or are lost; `why` is the failure that led
  // to this, if any.
  absl::Status Send(const std::vector<int32_t>& experts,
                    const absl::Status& why);
  // The same, but leaves what nobody is left for, and returns it.
  absl::StatusOr<std::vector<int32_t>> SendIfHeld(
      const std::vector<int32_t>& experts);
  // Whether it failed or has an outstanding piece for some of `experts`. A slow
  // holder may be the only one left for these.
  bool IsTried(const ReplicaHolding& holding,
               const std::vector<int32_t>& experts) const;
  absl::Status Start(ExchangePolicy::Group group, RowPiece piece);
  absl::StatusOr<WorkerCall> CallOf(const ReplicaHolding& holding,
                                    const RowPiece& piece) const;

  absl::Status Take(ReplyMailbox::Reply reply);
  absl::Status Merge(const SentPiece& sent, Replies replies);
  // The piece's rows have to come from elsewhere, or are lost.
  absl::Status Recover(const SentPiece& sent, const absl::Status& why);
  // Looks at pieces that are late.
  absl::Status Look(Time now);
  void Close(SentPiece& sent, bool cancel);
  // Experts of the piece without an answer that no other piece has.
  std::vector<int32_t> Unanswered(const SentPiece& sent) const;
  Time NextWakeup() const;
  absl::Status DeadlineError() const;
  Replies Finish();

  ExchangePolicy& policy_;
  const ExchangeRun& run_;
  const SegmentCall& call_;
  const absl::Span<const Tensor> operands_;
  const ExpertRows rows_;
  const int64_t first_piece_;
  const std::shared_ptr<ReplyMailbox> mailbox_;
  std::vector<SentPiece> sent_;
  int64_t open_ = 0;  // of these
  // By stub and session: not to be asked again.
  std::set<std::pair<const WorkerStub*, std::string>> failed_;
  std::vector<bool> answered_;  // [E]; experts without rows are
  Replies results_;             // one each reply, or empty tensors
  std::vector<int32_t> lost_;
  int64_t bytes_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_EXCHANGE_CALL_H_
