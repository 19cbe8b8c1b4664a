// ReplicatedCall: one call of a segment on whichever replicas answer. Part of
// ReplicatedSegments, which says what it does.

#ifndef ROUTER_REPLICATED_CALL_H_
#define ROUTER_REPLICATED_CALL_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "router/cancellation.h"
#include "router/replica_set.h"
#include "services/segments/call_segment.h"
#include "services/segments/expert_rows.h"
#include "services/segments/segment_runner.h"

namespace gshard {

class ReplicatedCall {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `operands` outlive this. REQUIRES: rows.total() > 0.
  ReplicatedCall(ReplicaSet& replicas, SegmentCall call,
                 absl::Span<const Tensor> operands, ExpertRows rows,
                 Time deadline);
  // Gives up what is still out.
  ~ReplicatedCall();

  absl::StatusOr<std::vector<Tensor>> Run(Cancellation& cancellation);

  // Experts whose rows are lost, ascending; after Run().
  const std::vector<int32_t>& lost() const { return lost_; }

 private:
  // Some experts' rows, on their way to one worker and back.
  struct Attempt {
    std::shared_ptr<const ReplicaGroup> group;  // keeps `holding`
    const ReplicaHolding* holding = nullptr;
    std::vector<int32_t> experts;
    std::vector<RowRange> ranges;
    int64_t rows = 0;
    uint64_t call_id = 0;
    Time sent;
    Time next_look;  // whether it takes too long
    bool open = true;
    bool slow = false;    // has taken longer than it should
    bool hedged = false;  // others have been asked as well
  };
  struct Reply {
    size_t attempt;
    absl::StatusOr<std::vector<Tensor>> tensors;
    Time at;
  };
  // Shared with the connections' callbacks, which may come later.
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Reply> replies;  // guarded by mutex
    bool cancelled = false;      // guarded by mutex
  };

  // Sends the rows of `experts` to replicas that have not been tried with them;
  // returns the experts for which there is none.
  absl::StatusOr<std::vector<int32_t>> Send(std::vector<int32_t> experts);
  // Whether it failed, or is being asked for some of `experts`. One that keeps
  // others waiting may be all that is left for these.
  bool IsTried(const ReplicaHolding& holding,
               const std::vector<int32_t>& experts) const;
  absl::Status Start(std::shared_ptr<const ReplicaGroup> group,
                     const ReplicaHolding& holding,
                     std::vector<int32_t> experts);
  absl::Status Take(Reply reply);
  absl::Status TakeRows(Attempt& attempt, std::vector<Tensor> tensors);
  // The experts' rows have to come from elsewhere, or are lost.
  absl::Status Recover(const Attempt& attempt, const absl::Status& why);
  // Looks at attempts that take long.
  absl::Status Look(Time now);
  void Close(Attempt& attempt, bool cancel);
  // Experts of the attempt without an answer, that no other attempt has.
  std::vector<int32_t> Unanswered(const Attempt& attempt) const;
  Time NextLook() const;
  std::vector<Tensor> Finish();

  ReplicaSet& replicas_;
  const SegmentCall call_;
  const absl::Span<const Tensor> operands_;
  const ExpertRows rows_;
  const Time deadline_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::vector<Attempt> attempts_;
  // By connection and session: not to be asked again.
  std::set<std::pair<const WorkerConnection*, std::string>> failed_;
  std::vector<bool> answered_;  // [E]; experts without rows are
  int64_t unanswered_ = 0;      // experts
  std::vector<Tensor> results_;
  std::vector<int32_t> lost_;
};

}  // namespace gshard

#endif  // ROUTER_REPLICATED_CALL_H_
