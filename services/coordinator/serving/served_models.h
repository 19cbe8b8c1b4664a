// ServedModels: the models that routers serve, by name, and their versions.
//
// A version is loaded beside the current one; when all routers have it they
// switch, each from one request to the next, and the previous one is released.
// A rollback restores it.
//
// Reconciliation: whenever something changes (members, their heartbeats and
// replies, requests) this observes the members' sessions, sends the commands of
// serving_diff.h, and repeats until nothing is left to do. Members that fail a
// command are retried after a pause, without waiting for them. Leaving workers
// are dismissed when nothing is left on them. Where all workers of a model are
// lost, as when the coordinator was cut off or paused, those that come back are
// given nothing new for a lease.
//
// Members keep sessions of served models without a coordinator. Sessions that
// no model needs are released.

#ifndef SERVICES_COORDINATOR_SERVING_SERVED_MODELS_H_
#define SERVICES_COORDINATOR_SERVING_SERVED_MODELS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/base/task_queue.h"
#include "services/coordinator/membership/members.h"
#include "services/coordinator/preparation/job_checkpoint.h"
#include "services/coordinator/serving/model_load.h"
#include "services/coordinator/serving/served_model.h"
#include "services/coordinator/serving/serving_diff.h"
#include "services/coordinator/serving/serving_gauges.h"
#include "services/coordinator/serving/worker_departure.h"

namespace gshard {

// Pause before a member that failed to load a session of a served model is
// asked again.
inline constexpr absl::Duration kServingRetryPause = absl::Seconds(30);

class ServedModels {
 public:
  // Called with the session's id.
  using OnLoaded = std::function<void(const absl::StatusOr<std::string>&)>;

  struct Options {
    int32_t replicas = 1;  // default for requests
    // Interval for checking loads and members' sessions.
    absl::Duration watch_interval = absl::Seconds(10);
    // See ModelLoads.
    absl::Duration load_half_life = absl::Minutes(1);
    absl::Duration retry_pause = kServingRetryPause;
    // How long a model waits for its workers, once one is back, after all were
    // lost; see ServedModel::settling.
    absl::Duration lease = absl::Seconds(5);
    ServingGauges gauges = {};  // reflect Describe(); may be unset
  };

  // `members` outlives this, `queue`, which runs everything, ends before it.
  // `keep_model` stores a model with its predecessor before its name refers to
  // it, and again when its replicas change; if that fails, so does the load.
  // `keep_placement` stores the placement that routers are told for a session;
  // one without workers when it is released.
  ServedModels(Members* members, TaskQueue* queue,
               std::function<int64_t()> next_placement_version,
               std::function<absl::Status(const ModelRequest&,
                                          const std::optional<ModelRequest>&)>
                   keep_model,
               std::function<void(const std::string&, const v1::Placement&)>
                   keep_placement,
               Options options);

  // Where sessions' experts were when the previous coordinator ended. Call
  // before Load(), on the queue.
  void SetKept(std::map<std::string, v1::Placement> placements) {
    kept_ = std::move(placements);
  }

  // The predecessor of the name's current model; likewise.
  void SetPrevious(const ModelRequest& request) {
    previous_[request.name] = request;
  }

  // Names to be served as soon as possible: members' sessions of them are not
  // released until the next call without them. Thread-safe.
  void SetAwaited(std::set<std::string> names);

  // From now on, checks loads, and releases sessions that no served model
  // needs. Call once all models to serve are loaded or loading. On the queue;
  // may be called again.
  void Watch();

  // Without looking at the checkpoint. Errors: InvalidArgument.
  static absl::Status Check(const ModelRequest& request);
  // Loads a checked request for `checkpoint`, which was opened elsewhere:
  // nothing here blocks. A model that is loaded or loading only changes its
  // number of replicas, and versions that are being loaded to replace it are
  // given up. On the queue. Errors: those of CoordinatorService.LoadModel.
  void Load(ModelRequest request, ServableCheckpoint checkpoint, OnLoaded done);
  // The request as resolved then, with the latest requested number of replicas;
  // null if unknown. On the queue.
  const ModelRequest* Find(const std::string& session) const;
  // What the name refers to if this session, which is stored, is unloaded; null
  // if that is nothing, or it is not stored yet. On the queue.
  const ModelRequest* Beside(const std::string& session) const;
  // The predecessor of a name's current model. On the queue. Errors: NotFound
  // if nothing of the name is served; FailedPrecondition without a predecessor.
  absl::StatusOr<ModelRequest> Previous(const std::string& name) const;
  // No effect if it is not loaded or loading. On the queue.
  void Unload(const std::string& session);
  // Forgets what the previous coordinator placed of a model that was not loaded
  // yet; of all versions if it is empty. On the queue.
  void Forget(const std::string& name, const std::string& version);
  // Unloads what is loading for the name from the checkpoint. Returns false if
  // it is too late: routers may be serving it. On the queue.
  bool GiveUp(const std::string& name, const std::string& directory);
  // On the queue.
  void OnMembersChanged();
  // Whoever waits for a load, or would wait later, is told this error. What is
  // loading goes on. On the queue.
  void StopWaiting(const absl::Status& why);

  // Names that are served, loading or awaited. Thread-safe.
  std::set<std::string> Names() const;
  // Of these, names that have no session yet. Thread-safe.
  std::set<std::string> Awaited() const;
  // Sorted by session. Thread-safe.
  std::vector<v1::SessionInfo> Describe() const;
  // Per expert worker, by name. Thread-safe.
  std::map<std::string, WorkerDeparture> Departures() const;

 private:
  // "name@version". Errors: AlreadyExists if another checkpoint has it.
  absl::StatusOr<std::string> SessionOf(
      const ModelRequest& request, const ServableCheckpoint& checkpoint) const;
  // Errors: those of CoordinatorService.LoadModel.
  absl::StatusOr<ServedModel> MakeModel(const ModelRequest& request,
                                        const ServableCheckpoint& checkpoint,
                                        const std::string& session);
  // The latest request of the name that routers may be serving, of another
  // session than `except`; null if there is none.
  const ModelRequest* Newest(const std::string& name,
                             const std::string& except) const;
  // The version that routers answer with, or did before, if this one is loaded.
  std::optional<ModelRequest> PredecessorOf(const ServedModel& model) const;
  // The model is no longer wanted: waiters are told why.
  void Remove(const std::string& session, const absl::Status& why);
  // Removes what is being loaded for the name of a model that is requested
  // again, and what it has begun to be replaced by.
  void CancelOthers(const ServedModel& model);
  // Asynchronous, since callbacks may call this object.
  void TellWaiting(const std::string& session,
                   const absl::StatusOr<std::string>& outcome);

  void Reconcile();
  // Once for all events that are already on the queue: it takes time for every
  // member and expert.
  void ReconcileSoon();
  // Updates the present members, assuming on new ones what FindKept() does.
  void Observe();
  // Ends the wait of models for their workers after a lease, if there is one.
  void EndSettling();
  // The sessions of members' last heartbeats, by member.
  std::map<std::string, std::set<std::string>> SessionsReported() const;
  // A reply is ignored if the member was lost, or was sent a newer command
  // about the session.
  void Send(const SessionCommand& command);
  void OnReply(const MemberKey& member, const std::string& session,
               int64_t command, const absl::Status& status);
  HeldSession* FindHeld(const MemberKey& member, const std::string& session,
                        int64_t command);
  ServedModel* FindModel(const std::string& session);
  void Look();
  // Dismisses the workers that may leave.
  void LetGo();

  Members* const cluster_;
  TaskQueue* const queue_;
  const std::function<int64_t()> next_placement_version_;
  const std::function<absl::Status(const ModelRequest&,
                                   const std::optional<ModelRequest>&)>
      keep_model_;
  const std::function<void(const std::string&, const v1::Placement&)>
      keep_placement_;
  const Options options_;
  ServingGauges gauges_;
  std::map<std::string, v1::Placement> kept_;  // by session
  ObservedMembers members_;
  DesiredModels desired_;
  std::map<std::string, std::vector<OnLoaded>> waiting_;  // by session
  std::map<std::string, ModelRequest> previous_;          // by name
  int64_t last_number_ = 0;
  int64_t last_command_ = 0;
  bool watching_ = false;
  absl::Status stopped_;          // see StopWaiting()
  bool reconciles_soon_ = false;  // it has been posted
  bool settles_ = false;          // likewise
  ModelLoads loads_;

  mutable Mutex mutex_;
  std::set<std::string> awaited_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::SessionInfo> published_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, WorkerDeparture> departures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SERVED_MODELS_H_
