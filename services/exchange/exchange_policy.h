// ExchangePolicy: which workers hold the experts of a model, and how failed and
// late pieces of a call are handled. TrainingPolicy is for training, ReplicaSet
// for serving; the rest of an exchange is the same.

#ifndef SERVICES_EXCHANGE_EXCHANGE_POLICY_H_
#define SERVICES_EXCHANGE_EXCHANGE_POLICY_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/exchange/exchange_metrics.h"
#include "services/exchange/worker_stub.h"

namespace gshard {

// The experts that one worker holds in one of its sessions.
struct ReplicaHolding {
  std::string worker;
  std::string session;           // name of the worker's session
  std::vector<int32_t> experts;  // global ids, ascending
  std::shared_ptr<WorkerStub> stub;
};

// A placement of a model. An expert may have several replicas, one, or none.
// Expert ids are below the model's number of experts.
struct ReplicaGroup {
  int64_t version = 0;
  std::vector<ReplicaHolding> holdings;
};

// The action for a late piece.
enum class LateAction {
  kWait,
  kHedge,   // also send to others, if there are any; the first answer counts
  kGiveUp,  // treat as failed
};

// Thread-safe.
class ExchangePolicy {
 public:
  using Group = std::shared_ptr<const ReplicaGroup>;
  using Time = std::chrono::steady_clock::time_point;

  ExchangePolicy(int64_t num_experts, ExchangeMetrics metrics)
      : num_experts_(num_experts), metrics_(std::move(metrics)) {}
  virtual ~ExchangePolicy() = default;

  ExchangePolicy(const ExchangePolicy&) = delete;
  ExchangePolicy& operator=(const ExchangePolicy&) = delete;

  int64_t num_experts() const { return num_experts_; }
  const ExchangeMetrics& metrics() const { return metrics_; }

  // The current holders of the experts. Called whenever rows are to be sent.
  virtual Group group() const = 0;

  // Whether to send rows to this holding: as its worker's health says.
  virtual WorkerHealth::State StateOf(const ReplicaHolding& holding) const {
    return holding.stub->state().health();
  }

  // The defaults of the methods below suit experts with one holder each:
  // nothing is late before the run's deadline, and a failed piece fails the
  // call.

  // Called at the start of each call.
  virtual void OnCall() {}

  // When a piece that is sent at `now` becomes late.
  virtual Time LateAt(const ReplicaHolding& /*holding*/, int64_t /*rows*/,
                      Time /*now*/) {
    return Time::max();
  }
  // Called when a piece is late, since `since`: `now` at the first call for it.
  // `others_asked`: pieces that are not late will answer for all of its rows.
  virtual LateAction OnLate(const ReplicaHolding& /*holding*/, Time /*since*/,
                            bool /*others_asked*/, Time /*now*/) {
    return LateAction::kWait;
  }
  // Called when nobody waits for a late piece any more: others have answered,
  // it was given up, or the run's deadline has passed.
  virtual void OnUnanswered(const ReplicaHolding& /*holding*/, Time /*now*/) {}
  // Called when a hedge was sent.
  virtual void OnHedge() {}

  // Called when the piece was answered.
  virtual void OnReply(const ReplicaHolding& /*holding*/, int64_t /*rows*/,
                       std::chrono::microseconds /*latency*/) {}
  // Called when the piece failed. Returns OK to try other holders, else the
  // error of the call.
  virtual absl::Status OnFailure(const ReplicaHolding& /*holding*/,
                                 const absl::Status& why) {
    return why;
  }

  // Called if no holder is left for the rows of `experts`, which is not empty;
  // `why` is the failure that led to this, if any. Returns OK if the rows are
  // lost and become zeros, else the error of the call.
  virtual absl::Status OnNoHolder(absl::Span<const int32_t> experts,
                                  const absl::Status& /*why*/) {
    return absl::InternalError(
        absl::StrCat("no expert worker holds expert ", experts[0]));
  }

 private:
  const int64_t num_experts_;
  const ExchangeMetrics metrics_;
};

// A placement that does not change, with one holder for each expert.
class TrainingPolicy final : public ExchangePolicy {
 public:
  TrainingPolicy(int64_t num_experts, Group group, ExchangeMetrics metrics = {})
      : ExchangePolicy(num_experts, std::move(metrics)),
        group_(std::move(group)) {}

  Group group() const override { return group_; }

 private:
  const Group group_;
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_EXCHANGE_POLICY_H_
