// ExpertExchange: rows of a router's program to the workers that hold their
// experts, and back.
//
//   plan    rows by expert -> pieces by holder     exchange_plan.h
//   send    one call to each holder                worker_stub.h
//   wait    one mailbox; the policy decides what   reply_mailbox.h,
//           a late or failed piece does            exchange_policy.h
//   merge   into one result; zeros, and a list of rows, where nobody answered
//
// A row has the same bits on every replica, and results are placed by row
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

// What the calls of one run say of themselves; see ExpertFrameHeader.
struct ExchangeRun {
  // 0 if calls are stateless; then holders without rows are not called. In
  // training they are, since they sum gradients.
  int64_t step = 0;
  int32_t microbatch = 0;
  int32_t attempt = 0;

  // The run gives up then.
  std::chrono::steady_clock::time_point deadline;
};

// Of one run; used by one thread, but for Interrupt().
class ExpertExchange final : public SegmentRunner {
 public:
  // `policy` and `calls` outlive this.
  ExpertExchange(ExchangePolicy& policy, const SegmentCalls& calls,
                 ExchangeRun run)
      : policy_(policy), calls_(calls), run_(run) {}

  // Errors: DeadlineExceeded; Cancelled after Interrupt(); ResourceExhausted if
  // a call is too long, or the queues of all holders are full; what the policy
  // says; other errors of workers as they are. Workers that have not answered
  // are then told that nobody waits.
  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) override;

  absl::Span<const RowRange> lost_rows() const override { return lost_rows_; }

  // Ends the call that waits, and all that follow. From any thread.
  void Interrupt() { mailbox_->Stop(); }
  bool interrupted() const { return mailbox_->stopped(); }

  // Bytes of tensors sent and received so far, and the time spent in calls.
  int64_t bytes() const { return bytes_; }
  std::chrono::microseconds waited() const { return waited_; }

 private:
  ExchangePolicy& policy_;
  const SegmentCalls& calls_;
  const ExchangeRun run_;
  // Shared with stubs, which may put a reply in later.
  const std::shared_ptr<ReplyMailbox> mailbox_ =
      std::make_shared<ReplyMailbox>();
  int64_t pieces_ = 0;  // sent so far
  std::vector<RowRange> lost_rows_;
  int64_t bytes_ = 0;
  std::chrono::microseconds waited_{0};
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_EXPERT_EXCHANGE_H_
