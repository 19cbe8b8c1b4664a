// ServedModels: the sessions that routers serve, from checkpoints.
//
// A model is loaded on the workers, then on the routers, and is ready when all
// have replied; only then does another version of the same name go. Routers
// that join later load what is ready. When a worker is lost the session is
// broken, and is placed anew on the workers that remain.

#ifndef SERVICES_COORDINATOR_SERVED_MODELS_H_
#define SERVICES_COORDINATOR_SERVED_MODELS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/coordinator/fan_out.h"
#include "services/coordinator/job_checkpoint.h"
#include "services/coordinator/session_plan.h"

namespace gshard {

class ServedModels {
 public:
  // With the session's id.
  using OnLoaded = std::function<void(const absl::StatusOr<std::string>&)>;

  // Both outlive this; `queue` runs everything.
  ServedModels(Members* members, TaskQueue* queue,
               std::function<int64_t()> next_placement_version)
      : members_(members),
        queue_(queue),
        next_placement_version_(std::move(next_placement_version)) {}

  // On the queue. Errors: those of CoordinatorService.LoadModel.
  void Load(const std::string& name, const std::string& version,
            const std::string& checkpoint_directory, OnLoaded done);
  // On the queue. Errors: those of CoordinatorService.UnloadModel.
  absl::Status Unload(const std::string& session);
  // On the queue.
  void OnMembersChanged();

  // Thread-safe; in order of session.
  std::vector<v1::SessionInfo> Describe() const;

 private:
  struct Served {
    std::string name;
    ServableCheckpoint checkpoint;
    v1::SessionInfo::State state = v1::SessionInfo::LOADING;
    // Tells replies to this attempt at loading from those to earlier ones.
    int64_t attempt = 0;
    SessionPlan plan;
    std::set<MemberKey> loading;  // routers that have not replied
    std::set<MemberKey> routers;  // that are ready
    bool was_ready = false;
    std::vector<OnLoaded> waiting;
  };

  absl::Status Begin(const std::string& session, Served* served);
  void LoadRouters(const std::string& session, Served* served);
  void OnRouterLoaded(const std::string& session, int64_t attempt,
                      const MemberKey& router, const absl::Status& status);
  void CheckReady(const std::string& session, Served* served);
  void Fail(const std::string& session, const absl::Status& status);
  // Null if the session is gone, or another attempt is being made.
  Served* Find(const std::string& session, int64_t attempt);
  // Tells all members that hold something of the session.
  void TellAll(const std::string& session, const Served& served, bool abort);

  // Takes what Describe() shows from sessions_.
  void Publish();

  Members* const members_;
  TaskQueue* const queue_;
  const std::function<int64_t()> next_placement_version_;
  std::map<std::string, Served> sessions_;
  int64_t last_attempt_ = 0;

  mutable std::mutex mutex_;
  std::vector<v1::SessionInfo> published_;  // guarded by mutex_
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVED_MODELS_H_
