// ExpertExchange: sends rows of a router's program to the workers that hold
// their experts, and receives the results.
//
//   plan    rows by expert -> pieces by holder     exchange_plan.h
//   send    one call to each holder                worker_stub.h
//   wait    one mailbox; the policy decides about  reply_mailbox.h,
//           late and failed pieces                 exchange_policy.h
//   merge   into one result; lost rows are zeros and listed
//
// A row has the same bits on every replica, and results are placed by row,
// regardless of their order of arrival.

#ifndef SERVICES_EXCHANGE_EXPERT_EXCHANGE_H_
#define SERVICES_EXCHANGE_EXPERT_EXCHANGE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/exchange/exchange_policy.h"
#include "services/exchange/reply_mailbox.h"
#include "services/exchange/segment_calls.h"
#include "services/segments/segment_runner.h"

namespace gshard {

// Header fields of all calls of one run; see ExpertFrameHeader.
struct ExchangeRun {
  // 0 if calls are stateless; holders without rows are then not called. In
  // training they are called, since they sum gradients.
  int64_t step = 0;
  int32_t microbatch = 0;
  int32_t attempt = 0;

  // The run fails at this time.
  std::chrono::steady_clock::time_point deadline;
};

// Serves one run. Used by one thread, except for Interrupt().
class ExpertExchange final : public SegmentRunner {
 public:
  // `policy` and `calls` must outlive this object.
  ExpertExchange(ExchangePolicy& policy, const SegmentCalls& calls,
                 ExchangeRun run)
      : policy_(policy), calls_(calls), run_(run) {}

  // Errors: DeadlineExceeded; Cancelled after Interrupt(); ResourceExhausted if
  // a call is too long or, with a RetryDelay, the queues of all holders are
  // full; those of the policy; other errors of workers, unchanged. Calls
  // without an answer are cancelled on their workers.
  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) override;

  absl::Span<const RowRange> lost_rows() const override { return lost_rows_; }

  // Cancels the waiting call and all later ones. May be called from any thread.
  void Interrupt() { mailbox_->Stop(); }
  bool interrupted() const { return mailbox_->stopped(); }

  // Bytes of tensors sent and received so far, and the time spent in calls.
  int64_t bytes() const { return bytes_; }
  std::chrono::microseconds waited() const { return waited_; }

 private:
  ExchangePolicy& policy_;
  const SegmentCalls& calls_;
  const ExchangeRun run_;
  // Shared with stubs, which may deliver a reply later.
  const std::shared_ptr<ReplyMailbox> mailbox_ =
      std::make_shared<ReplyMailbox>();
  int64_t pieces_ = 0;  // sent so far
  std::vector<RowRange> lost_rows_;
  int64_t bytes_ = 0;
  std::chrono::microseconds waited_{0};
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_EXPERT_EXCHANGE_H_
