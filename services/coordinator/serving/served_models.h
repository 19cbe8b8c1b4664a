// ServedModels: the models that routers serve, by name, and their versions.
//
// A version is loaded beside the one that serves; when all routers have it they
// answer with it, each from one request to the next, and the other one is
// released. The one before can be called back.
//
// Reconciliation: whenever something changes (members, their heartbeats and
// replies, requests) this observes the members' sessions, sends the commands of
// serving_diff.h, and repeats until nothing is left to do. Members that fail a
// command are retried after a pause, without waiting for them. Workers that
// want to leave are let go when nothing is left on them.
//
// Members keep sessions of served models when a coordinator goes. Those that
// nothing here needs are released.

#ifndef SERVICES_COORDINATOR_SERVING_SERVED_MODELS_H_
#define SERVICES_COORDINATOR_SERVING_SERVED_MODELS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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

// After which a member that cannot load what a served model needs, though it is
// there, is asked again.
inline constexpr absl::Duration kServingRetryPause = absl::Seconds(30);

class ServedModels {
 public:
  // With the session's id.
  using OnLoaded = std::function<void(const absl::StatusOr<std::string>&)>;

  using Request = ModelRequest;

  struct Options {
    int32_t replicas = 1;  // of requests that do not say
    // How often loads and members' sessions are looked at.
    absl::Duration watch_interval = absl::Seconds(10);
    // See ModelLoads.
    absl::Duration load_half_life = absl::Minutes(1);
    absl::Duration retry_pause = kServingRetryPause;
    ServingGauges gauges = {};  // of what Describe() shows; may be unset
  };

  // `members` outlives this, `queue`, which runs everything, ends before it.
  // `keep_placement`: routers are told this placement of a session; one without
  // workers when it is released.
  ServedModels(Members* members, TaskQueue* queue,
               std::function<int64_t()> next_placement_version,
               std::function<void(const std::string&, const v1::Placement&)>
                   keep_placement,
               Options options);

  // Where sessions' experts were when the coordinator before ended. To be
  // called before Load(). On the queue.
  void SetKept(std::map<std::string, v1::Placement> placements) {
    kept_ = std::move(placements);
  }

  // What its name served before what it serves; likewise.
  void SetPrevious(const Request& request) {
    previous_[request.name] = request;
  }

  // Names that are to be served as soon as that can be: what members have of
  // them is not released. Thread-safe.
  void SetAwaited(std::set<std::string> names);

  // From now on, looks at loads, and releases sessions that members have and
  // that no served model needs: all others that are to be served have been
  // loaded, or are being loaded. On the queue; may be called again.
  void Watch();

  // What is asked of a model that is loaded, or being loaded, already is its
  // number of replicas. On the queue. Errors: those of
  // CoordinatorService.LoadModel.
  void Load(Request request, OnLoaded done);
  // What was asked for, as it was found then, and with the replicas of whoever
  // asked last for some; null if it is not there. On the queue.
  const Request* Find(const std::string& session) const;
  // What a name served before what it serves. On the queue. Errors: NotFound
  // if nothing of the name is served; FailedPrecondition without a predecessor.
  absl::StatusOr<Request> Previous(const std::string& name) const;
  // On the queue. Errors: those of CoordinatorService.UnloadModel.
  absl::Status Unload(const std::string& session);
  // On the queue.
  void OnMembersChanged();

  // Thread-safe: names of what is served, loaded or awaited.
  std::set<std::string> Names() const;
  // Thread-safe; in order of session.
  std::vector<v1::SessionInfo> Describe() const;
  // Of each expert worker, by name. Thread-safe.
  std::map<std::string, WorkerDeparture> Departures() const;

 private:
  // "name@version". Errors: AlreadyExists if that is another checkpoint's.
  absl::StatusOr<std::string> SessionOf(
      const Request& request, const ServableCheckpoint& checkpoint) const;
  // Errors: those of CoordinatorService.LoadModel.
  absl::StatusOr<ServedModel> MakeModel(const Request& request,
                                        const ServableCheckpoint& checkpoint,
                                        const std::string& session);
  // The model is not wanted any more: whoever waits for it is told why.
  void Remove(const std::string& session, const absl::Status& why);
  // Not from inside of this, which they may call.
  void TellWaiting(const std::string& session,
                   const absl::StatusOr<std::string>& outcome);

  void Reconcile();
  // Takes the members that are there, with what an earlier coordinator has
  // placed on those that are new.
  void Observe();
  // The sessions of members' last heartbeats, by member.
  std::map<std::string, std::set<std::string>> SessionsReported() const;
  // A reply counts unless the member was lost, or was sent another command
  // about the session since.
  void Send(const SessionCommand& command);
  void OnReply(const MemberKey& member, const std::string& session,
               int64_t command, const absl::Status& status);
  HeldSession* FindHeld(const MemberKey& member, const std::string& session,
                        int64_t command);
  ServedModel* FindModel(const std::string& session);
  void Look();
  // Lets workers go that may.
  void LetGo();

  Members* const cluster_;
  TaskQueue* const queue_;
  const std::function<int64_t()> next_placement_version_;
  const std::function<void(const std::string&, const v1::Placement&)>
      keep_placement_;
  const Options options_;
  ServingGauges gauges_;
  std::map<std::string, v1::Placement> kept_;  // by session
  ObservedMembers members_;
  DesiredModels desired_;
  std::map<std::string, std::vector<OnLoaded>> waiting_;  // by session
  std::map<std::string, Request> previous_;               // by name
  int64_t last_number_ = 0;
  int64_t last_command_ = 0;
  bool watching_ = false;
  ModelLoads loads_;

  mutable Mutex mutex_;
  std::set<std::string> awaited_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::SessionInfo> published_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, WorkerDeparture> departures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SERVED_MODELS_H_
