// ExchangePolicy: who holds the experts of a model, and how failed and late
// pieces of a call are handled. TrainingPolicy is for training, ReplicaSet for
// serving; the rest of an exchange is the same.

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

// What one worker holds, under one of its sessions.
struct ReplicaHolding {
  std::string worker;
  std::string session;           // the worker's
  std::vector<int32_t> experts;  // global ids, ascending
  std::shared_ptr<WorkerStub> stub;
};

// A placement of a model: an expert has one replica or several, or none. All
// are below the number of the model's experts.
struct ReplicaGroup {
  int64_t version = 0;
  std::vector<ReplicaHolding> holdings;
  // So many holdings in turn have the same experts, a slice each of their inner
  // width; all are asked, and what they reply is added in their order.
  int slices = 1;
};

// The action for a late piece.
enum class LateAction {
  kWait,
  kHedge,   // the first answer counts
  kGiveUp,  // as if it had failed
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

  // The present holders of the experts. Called whenever rows are to be sent.
  virtual Group group() const = 0;

  // The defaults below suit experts with one holder each: nothing is late
  // before the run's deadline, and a failed piece fails the call.

  // A call begins.
  virtual void OnCall() {}

  // When a piece that is sent at `now` is first late.
  virtual Time LateAt(const ReplicaHolding& /*holding*/, int64_t /*rows*/,
                      Time /*now*/) {
    return Time::max();
  }
  // It is late, for the first time or again.
  virtual LateAction OnLate(const ReplicaHolding& /*holding*/, bool /*again*/,
                            bool /*others_asked*/, Time /*now*/) {
    return LateAction::kWait;
  }

  // It was answered.
  virtual void OnReply(const ReplicaHolding& /*holding*/, int64_t /*rows*/,
                       std::chrono::microseconds /*latency*/) {}
  // It failed. OK if others are to be asked; else what the call fails with.
  virtual absl::Status OnFailure(const ReplicaHolding& /*holding*/,
                                 const absl::Status& why) {
    return why;
  }

  // Nobody is left to be asked for the rows of `experts`, not empty; `why` is
  // the failure that led to it, if any. OK if they are lost and come back as
  // zeros; else what the call fails with.
  virtual absl::Status OnNoHolder(absl::Span<const int32_t> experts,
                                  const absl::Status& /*why*/) {
    return absl::InternalError(
        absl::StrCat("no expert worker holds expert ", experts[0]));
  }

 private:
  const int64_t num_experts_;
  const ExchangeMetrics metrics_;
};

// A placement that does not change, each expert once.
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
