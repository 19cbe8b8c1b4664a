// ReplicaSet: the exchange of a served model: the expert workers that hold it
// at present, several of which may hold the same expert.
//
// A failed piece is retried on other replicas at once; a slow one is hedged to
// another, and the first answer counts. Both are possible since calls are
// stateless. Rows of experts without a remaining replica are lost. Failed and
// slow workers are avoided, and pinged by the set's own thread until they
// answer again.

#ifndef SERVICES_EXCHANGE_REPLICA_SET_H_
#define SERVICES_EXCHANGE_REPLICA_SET_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "services/base/mutex.h"
#include "services/cluster/worker_health.h"
#include "services/exchange/exchange_policy.h"
#include "services/exchange/reply_mailbox.h"

namespace gshard {

// Thread-safe.
class ReplicaSet final : public ExchangePolicy {
 public:
  // How long a worker may take to answer a ping: more than one that is there
  // needs on a busy machine. Those that are dead are known without.
  static constexpr std::chrono::milliseconds kPingTimeout{2'000};

  ReplicaSet(int64_t num_experts, Group group, ExchangeMetrics metrics = {});
  ~ReplicaSet() override;

  // Calls from now on go to `group`, unless the present one is newer; those in
  // flight finish where they are.
  void Update(Group group);

  // Pings every holding of `group`, at the same time, and returns when all have
  // answered or the time is up. Those that cannot be reached count as failed,
  // for all models; those without the session do not.
  // Errors: Unavailable if an expert of the group is then left without a
  // holding that answered; names a worker.
  absl::Status Verify(const ReplicaGroup& group,
                      std::chrono::milliseconds timeout = kPingTimeout);

  // Experts that a worker holds which has not failed.
  int64_t live_experts() const;

  Group group() const override;
  void OnCall() override;
  Time LateAt(const ReplicaHolding& holding, int64_t rows, Time now) override;
  // Hedges if the HedgeBudget allows, else at a later check. Gives up on a
  // worker that does not answer pings either.
  LateAction OnLate(const ReplicaHolding& holding, bool again,
                    bool others_asked, Time now) override;
  void OnReply(const ReplicaHolding& holding, int64_t rows,
               std::chrono::microseconds latency) override;
  // Others may be there where a worker or its session is not, and have room
  // where its queue is full; other errors would come from any replica.
  absl::Status OnFailure(const ReplicaHolding& holding,
                         const absl::Status& why) override;
  // Unavailable if no worker of the model is left at all; ResourceExhausted if
  // one had no room.
  absl::Status OnNoHolder(absl::Span<const int32_t> experts,
                          const absl::Status& why) override;

 private:
  // Asks whether it is there; the reply is put into `mailbox`.
  static uint64_t Ping(const ReplicaHolding& holding,
                       std::shared_ptr<ReplyMailbox> mailbox, int64_t number);
  void RunPings();
  // A worker that was good is avoided from now on, or was: ping it.
  void Avoid(const ReplicaHolding& holding, bool changed);

  // Of the thread; shared with replies, which may come after the set is gone.
  const std::shared_ptr<ReplyMailbox> pings_ = std::make_shared<ReplyMailbox>();
  mutable Mutex mutex_;
  Group group_ ABSL_GUARDED_BY(mutex_);  // not null
  HedgeBudget budget_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_REPLICA_SET_H_
