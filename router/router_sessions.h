// RouterSessions: a router's implementation of the coordinator's commands.

#ifndef ROUTER_ROUTER_SESSIONS_H_
#define ROUTER_ROUTER_SESSIONS_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "router/metrics/router_metrics.h"
#include "router/models/model_table.h"
#include "router/models/serving_session.h"
#include "router/training/dense_group.h"
#include "router/training/training_session.h"
#include "router/workers/worker_connection.h"
#include "services/base/mutex.h"

namespace gshard {

// Thread-safe.
class RouterSessions {
 public:
  // Makes a channel to the coordinator.
  using ReachCoordinator =
      std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>()>;

  // Each training session has a channel of `reach_coordinator`; `models` (not
  // owned) gets the served models; `make_rendezvous` is for training sessions
  // with a dense group. Programs run on `device`, or on the
  // CPU if null. For `faults` see services/storage/file.h.
  RouterSessions(
      ReachCoordinator reach_coordinator, ChannelOptions to_workers,
      ModelTable* models, RouterMetrics metrics,
      RendezvousFactory make_rendezvous = NetworkRendezvous("127.0.0.1"),
      const Tracer& tracer = {}, const SharingOptions& sharing = {},
      Device* device = nullptr, FaultPoints* faults = nullptr);

  // Executes a command; blocks. Errors go into the reply, see
  // coordinator.proto. Removing a session waits for what Begin() has returned.
  v1::CommandReply Handle(const v1::Command& command);

  // As MemberHandler::Begin: WriteCheckpoint takes its snapshot in command
  // order and writes it while other commands run.
  std::function<v1::CommandReply()> Begin(const v1::Command& command);

  // Makes the current work of a job's session, or the load or release of a
  // model, end soon, even if it is only about to begin. A model whose release
  // has ended so stays, with its calls, until it is released again.
  void Interrupt(const std::string& session);

  // Drops all job sessions at once. Models continue to be served.
  void DropTraining();

  // Whether there is a model, and workers for every expert of each model were
  // reachable once; standbys do not count.
  bool ready() const;

  int64_t memory_bytes() const;
  // Loads of the served models.
  std::vector<v1::SessionLoad> Loads() const;

 private:
  struct Entry {
    std::shared_ptr<TrainingSession> training;  // either this
    std::shared_ptr<ServingSession> serving;    // or this
  };
  struct Write;  // a checkpoint's shard to be written

  absl::Status Do(const v1::Command& command, v1::CommandReply* reply);
  absl::Status Update(const v1::UpdatePlacement& update);
  absl::StatusOr<v1::SessionLoaded> Load(const v1::LoadSession& load);
  absl::StatusOr<Entry> Make(const v1::LoadSession& load, std::stop_token stop);
  Entry Find(const std::string& session) const;
  absl::StatusOr<std::shared_ptr<TrainingSession>> FindTraining(
      const std::string& session) const;
  absl::StatusOr<std::shared_ptr<TrainingSession>> FindDense(
      const std::string& session) const;
  absl::StatusOr<Write> TakeShard(const std::string& session, int64_t step);
  // Commands to routers with a dense group.
  absl::Status DoDense(const v1::Command& command, v1::CommandReply* reply);
  // Removes a session once its shards are written, or given up; after its calls
  // if `wait`. Errors: Cancelled if that wait was interrupted.
  absl::Status Remove(const std::string& session, bool wait);
  static void Stop(const Entry& entry);

  const ReachCoordinator reach_coordinator_;
  ModelTable* const models_;
  const RouterMetrics metrics_;
  const RendezvousFactory make_rendezvous_;
  Device* const device_;  // outlives the sessions
  FaultPoints* const faults_;
  // Separate, so that no row of a translation waits behind a job's megabytes.
  WorkerConnections to_served_;
  WorkerConnections to_training_;

  mutable Mutex mutex_;
  std::map<std::string, Entry> sessions_ ABSL_GUARDED_BY(mutex_);
  // By session, while it is loaded or removed, and from Interrupt() until it
  // has been, as that may not have begun.
  std::map<std::string, std::stop_source> stops_ ABSL_GUARDED_BY(mutex_);
  // The session of each shard that is being written.
  std::multiset<std::string> writing_ ABSL_GUARDED_BY(mutex_);
  CondVar written_;
};

}  // namespace gshard

#endif  // ROUTER_ROUTER_SESSIONS_H_
