// ServedModels: the models that routers serve, by name, and their versions.
//
// A version is loaded beside the one that serves; when all routers have it they
// answer with it, each from one request to the next, and the other one is
// released. The one before can be called back.
//
// Members keep sessions of served models when a coordinator goes. Those that
// nothing here needs are released.

#ifndef SERVICES_COORDINATOR_SERVED_MODELS_H_
#define SERVICES_COORDINATOR_SERVED_MODELS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/coordinator/model_load.h"
#include "services/coordinator/served_model.h"
#include "services/coordinator/serving_gauges.h"

namespace gshard {

class ServedModels {
 public:
  // With the session's id.
  using OnLoaded = std::function<void(const absl::StatusOr<std::string>&)>;

  struct Request {
    std::string name;
    std::string version;  // empty: the checkpoint's step
    std::string checkpoint_directory;
    int32_t replicas = 0;  // 0: the default
  };

  struct Options {
    int32_t replicas = 1;  // of requests that do not say
    // How often loads and members' sessions are looked at.
    absl::Duration watch_interval = absl::Seconds(10);
    // See ModelLoads.
    absl::Duration load_half_life = absl::Minutes(1);
    // See ServingEnvironment.
    absl::Duration retry_pause = kServingRetryPause;
    ServingGauges gauges = {};  // of what Describe() shows; may be unset
  };

  // `members` and `queue` outlive this; `queue` runs everything. For
  // `keep_placement` see ServingEnvironment.
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
  void Load(const Request& request, OnLoaded done);
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

 private:
  struct Served {
    std::shared_ptr<ServedModel> model;
    Request request;
    int64_t number = 0;  // later ones have higher ones
    std::vector<OnLoaded> waiting;
  };

  // "name@version". Errors: AlreadyExists if that is another checkpoint's.
  absl::StatusOr<std::string> SessionOf(
      const Request& request, const ServableCheckpoint& checkpoint) const;
  void OnLoadedModel(const std::string& session, int64_t number,
                     const absl::Status& status);
  void Look();
  // Releases what members have had at two looks, and nobody needs.
  void ReleaseForgotten(const std::vector<v1::Member>& members);
  // Whether a member's session belongs to a model that is served.
  bool IsNeeded(const MemberKey& member, const std::string& session) const;
  // Takes what Describe() and the gauges show from sessions_.
  void Publish();

  const ServingEnvironment environment_;
  const Options options_;
  std::map<std::string, v1::Placement> kept_;  // by session
  std::map<std::string, Served> sessions_;
  std::map<std::string, Request> previous_;  // by name
  int64_t last_number_ = 0;
  bool watching_ = false;
  ModelLoads loads_;
  // Not needed at the last look.
  std::set<std::pair<MemberKey, std::string>> forgotten_;

  mutable std::mutex mutex_;
  std::set<std::string> awaited_;           // guarded by mutex_
  std::vector<v1::SessionInfo> published_;  // guarded by mutex_
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVED_MODELS_H_
