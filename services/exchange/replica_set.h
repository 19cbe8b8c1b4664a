// ReplicaSet: the exchange policy of a served model, whose experts may each be
// held by several expert workers.
//
// A failed piece is retried on other replicas at once. A slow one is hedged to
// another replica, and the first answer counts. Both are possible because calls
// are stateless. Rows of experts without a remaining replica are lost. Failed
// and slow workers are avoided, and the set's own thread pings them until they
// answer again; one that answers pings only is avoided for a while. A worker
// that lacks a session of the placement is pinged for it, too; meanwhile other
// replicas are preferred, and its experts do not count as live.

#ifndef SERVICES_EXCHANGE_REPLICA_SET_H_
#define SERVICES_EXCHANGE_REPLICA_SET_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
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
  // How long a worker may take to answer a ping: more than a live one needs on
  // a busy machine. Dead workers are detected without pings.
  static constexpr std::chrono::milliseconds kPingTimeout{2'000};

  ReplicaSet(int64_t num_experts, Group group, ExchangeMetrics metrics = {});
  ~ReplicaSet() override;

  // Pieces sent from now on use `group`; pieces in flight finish on their
  // workers. Errors: FailedPrecondition if the current group is newer.
  absl::Status Update(Group group);
  // The next Update() may have any version: it comes from another coordinator,
  // which counts on its own.
  void AcceptAnyVersion();

  // Pings all holdings of `group` at the same time, and returns when all have
  // answered or at the timeout. Workers that cannot be reached count as failed,
  // for all models; workers that only lack the session do not.
  // Errors: Unavailable, naming a worker, if an expert of the group has no
  // holding that answered.
  absl::Status Verify(const ReplicaGroup& group,
                      std::chrono::milliseconds timeout = kPingTimeout);

  // The number of experts with a holder that has not failed, nor lacks the
  // session.
  int64_t live_experts() const;

  Group group() const override;
  // Others are preferred to a holding whose session is missing.
  WorkerHealth::State StateOf(const ReplicaHolding& holding) const override;
  void OnCall() override;
  Time LateAt(const ReplicaHolding& holding, int64_t rows, Time now) override;
  // Hedges if the HedgeBudget allows it, otherwise possibly at a later check;
  // and whatever it allows once the piece has been late for as long as a ping
  // may take. Pings a worker that stays late again and again, and gives up on
  // one that does not answer, or says that it is blocked.
  LateAction OnLate(const ReplicaHolding& holding, Time since,
                    bool others_asked, Time now) override;
  void OnUnanswered(const ReplicaHolding& holding, Time now) override;
  void OnHedge() override;
  void OnReply(const ReplicaHolding& holding, int64_t rows,
               std::chrono::microseconds latency) override;
  // Returns OK for failures that other replicas may not share: a lost worker, a
  // missing session, a full queue (ResourceExhausted with a RetryDelay), a call
  // that is too long for it (without one). Other errors would occur on every
  // replica.
  absl::Status OnFailure(const ReplicaHolding& holding,
                         const absl::Status& why) override;
  // Unavailable if the model has no live expert at all; ResourceExhausted if
  // that was the failure.
  absl::Status OnNoHolder(absl::Span<const int32_t> experts,
                          const absl::Status& why) override;

 private:
  // Pings the holding's worker; the reply is put into `mailbox`.
  static uint64_t Ping(const ReplicaHolding& holding,
                       std::shared_ptr<ReplyMailbox> mailbox, int64_t number);
  void RunPings();
  // The worker has answered for a session, or that it lacks it.
  void NoteSession(const WorkerStub* stub, const std::string& session,
                   bool is_there);
  // When to ping the holding for its session, if that is missing; max() if not.
  // A time that is due is moved on.
  Time NextAsk(const ReplicaHolding& holding, Time now);
  // The worker is avoided now; `changed` if it was not before. Wakes the thread
  // to ping it.
  void Avoid(const ReplicaHolding& holding, bool changed);

  // The thread's mailbox; shared with replies, which may arrive after the set
  // is destroyed.
  const std::shared_ptr<ReplyMailbox> pings_ = std::make_shared<ReplyMailbox>();
  mutable Mutex mutex_;
  Group group_ ABSL_GUARDED_BY(mutex_);                  // not null
  std::shared_ptr<void> shown_ ABSL_GUARDED_BY(mutex_);  // WorkerCounts::Show()
  int64_t least_version_ ABSL_GUARDED_BY(mutex_);        // of the next Update()
  // Sessions of the group that their workers lack, and when they are pinged
  // next.
  std::map<std::pair<const WorkerStub*, std::string>, Time> missing_
      ABSL_GUARDED_BY(mutex_);
  HedgeBudget budget_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_REPLICA_SET_H_
