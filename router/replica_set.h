// ReplicaSet: the expert workers that hold a served model at present, several
// of which may hold the same expert. Those that failed or keep calls waiting
// are pinged by a thread of its own until they answer again.

#ifndef ROUTER_REPLICA_SET_H_
#define ROUTER_REPLICA_SET_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "router/router_metrics.h"
#include "router/worker_connection.h"
#include "services/cluster/worker_health.h"

namespace gshard {

// What one worker holds, under one of its sessions.
struct ReplicaHolding {
  std::string worker;
  std::string session;           // the worker's
  std::vector<int32_t> experts;  // global ids, ascending
  std::shared_ptr<WorkerConnection> connection;
};

// A placement of a served model.
struct ReplicaGroup {
  int64_t version = 0;
  std::vector<ReplicaHolding> holdings;
};

// Experts may be held by several, or by none. `session` is that of holdings
// which name none. Errors: InvalidArgument if a list is not ascending experts
// below `num_experts`, or an address is not one.
absl::StatusOr<std::shared_ptr<const ReplicaGroup>> ConnectReplicas(
    const v1::Placement& placement, const std::string& session,
    int64_t num_experts, WorkerConnections& connections);

// Thread-safe.
class ReplicaSet {
 public:
  using Group = std::shared_ptr<const ReplicaGroup>;

  // How long a worker may take to answer a ping: more than one that is there
  // needs on a busy machine. Those that are dead are known without.
  static constexpr std::chrono::milliseconds kPingTimeout{2'000};

  ReplicaSet(int64_t num_experts, Group group, RouterMetrics metrics = {});
  ~ReplicaSet();

  ReplicaSet(const ReplicaSet&) = delete;
  ReplicaSet& operator=(const ReplicaSet&) = delete;

  Group group() const;

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

  int64_t num_experts() const { return num_experts_; }
  // Experts that a worker holds which has not failed.
  int64_t live_experts() const;

  // A worker of the group has failed or keeps calls waiting: ping it.
  void WakePings();

  // Whether a call may be made twice now; see HedgeBudget.
  void OnCall();
  bool TakeHedge();

  const RouterMetrics& metrics() const { return metrics_; }

 private:
  struct Pings;

  static void Ping(const std::shared_ptr<Pings>& pings,
                   const ReplicaHolding& holding);
  void RunPings();

  const int64_t num_experts_;
  const RouterMetrics metrics_;
  const std::shared_ptr<Pings> pings_;
  mutable std::mutex mutex_;
  Group group_;         // guarded by mutex_; not null
  HedgeBudget budget_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace gshard

#endif  // ROUTER_REPLICA_SET_H_
