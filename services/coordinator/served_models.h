// ServedModels: the models that routers serve, by name, and their versions.
//
// A version is loaded beside the one that serves; when all routers have it they
// answer with it, each from one request to the next, and the other one is
// released. The one before can be called back.

#ifndef SERVICES_COORDINATOR_SERVED_MODELS_H_
#define SERVICES_COORDINATOR_SERVED_MODELS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/coordinator/model_load.h"
#include "services/coordinator/served_model.h"

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

  // Both outlive this; `queue` runs everything. `default_replicas` is of
  // requests that do not say.
  ServedModels(Members* members, TaskQueue* queue,
               std::function<int64_t()> next_placement_version,
               int32_t default_replicas = 1);

  // On the queue. Errors: those of CoordinatorService.LoadModel.
  void Load(const Request& request, OnLoaded done);
  // What a name served before what it serves. On the queue. Errors: NotFound
  // if nothing of the name is served; FailedPrecondition without a predecessor.
  absl::StatusOr<Request> Previous(const std::string& name) const;
  // On the queue. Errors: those of CoordinatorService.UnloadModel.
  absl::Status Unload(const std::string& session);
  // On the queue.
  void OnMembersChanged();

  // Thread-safe; in order of session.
  std::vector<v1::SessionInfo> Describe() const;

 private:
  struct Served {
    std::shared_ptr<ServedModel> model;
    Request request;
    int64_t number = 0;  // later ones have higher ones
    std::vector<OnLoaded> waiting;
  };

  void OnLoadedModel(const std::string& session, int64_t number,
                     const absl::Status& status);
  // Looks at loads from time to time, as long as there are models.
  void WatchLoad();
  // Takes what Describe() shows from sessions_.
  void Publish();

  const ServingEnvironment environment_;
  const int32_t default_replicas_;
  std::map<std::string, Served> sessions_;
  std::map<std::string, Request> previous_;  // by name
  int64_t last_number_ = 0;
  bool watching_load_ = false;
  ModelLoads loads_;

  mutable std::mutex mutex_;
  std::vector<v1::SessionInfo> published_;  // guarded by mutex_
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVED_MODELS_H_
