// ServedModel: one version of a model that routers serve, and where its experts
// are.
//
// Workers hold experts in parts: sessions of their own that are loaded and
// released as a whole. Whenever something changes (members, measured load, a
// part that is loaded), Reconcile() decides where experts should be, and begins
// what is missing. Parts are loaded first, then routers are told the new
// placement, and only when all of them have replied are the old parts released:
// calls never wait. A version that replaces another is loaded as a standby:
// when all routers have it, they are told that it answers for the name, so that
// one which cannot load it changes nothing. A worker that is lost is left out
// at once; its experts go to the others, and back when it is back.
//
// Members keep what they have while there is no coordinator. The next one asks
// workers for the parts of the last placement that was kept, and whoever has
// them already has nothing to do. A model that is taken up like this serves:
// nothing that fails takes away what members have of it. Members that cannot do
// what they should are asked again after a pause, and not waited for.

#ifndef SERVICES_COORDINATOR_SERVED_MODEL_H_
#define SERVICES_COORDINATOR_SERVED_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/cluster/replica_placement.h"
#include "services/coordinator/job_checkpoint.h"
#include "services/coordinator/members.h"
#include "services/coordinator/session_plan.h"
#include "services/coordinator/task_queue.h"

namespace gshard {

// After which a member that cannot load what a served model needs, though it is
// there, is asked again.
inline constexpr absl::Duration kServingRetryPause = absl::Seconds(30);

// What models need of the coordinator. All of it outlives them.
struct ServingEnvironment {
  Members* members = nullptr;
  TaskQueue* queue = nullptr;  // runs everything
  std::function<int64_t()> next_placement_version;
  // Routers are told this placement of a session; one without workers when it
  // is released.
  std::function<void(const std::string& session, const v1::Placement&)>
      keep_placement;
  // Something that ServedModel::Describe() shows has changed.
  std::function<void()> on_change;
  // Whether a model that is served now needs this session of a worker, or may.
  std::function<bool(const MemberKey& worker, const std::string& session)>
      is_needed;
  absl::Duration retry_pause = kServingRetryPause;
};

// On the queue.
class ServedModel : public std::enable_shared_from_this<ServedModel> {
 public:
  // Told once: every router has loaded the model, reached a worker for every
  // expert, and answers with it; or why that will not be.
  using OnLoaded = std::function<void(const absl::Status&)>;

  // `session` is "name@version"; `standby`: its name stands for another version
  // until all routers have this one; `kept` is where an earlier coordinator had
  // its experts, and may be empty; `on_loaded` follows Start(). Errors: those
  // of PlanServing.
  static absl::StatusOr<std::shared_ptr<ServedModel>> Create(
      const ServingEnvironment& environment, const std::string& session,
      ServableCheckpoint checkpoint, int32_t replicas, bool standby,
      v1::Placement kept, OnLoaded on_loaded);

  // Begins to load. Errors: FailedPrecondition without router or worker;
  // ResourceExhausted if it does not fit.
  absl::Status Start();

  // Members have changed, or loads have been measured: does what is to be done.
  void Reconcile();

  // How many workers are to hold each expert from now on.
  void SetReplicas(int32_t replicas) {
    replicas_ = replicas;
    homes_.clear();
    Reconcile();
  }

  // Rows per second of each expert, [E]; of another length, which is what
  // routers have said, they count as not known.
  void SetLoad(std::vector<double> load);

  // Releases it everywhere: on routers after their calls, then on workers; with
  // `abort` at once. Nothing is called back any more.
  void Release(bool abort);

  const std::string& session() const { return session_; }
  const ServableCheckpoint& checkpoint() const { return checkpoint_; }
  int32_t replicas() const { return replicas_; }
  // on_loaded has been told so.
  bool loaded() const { return loaded_ && on_loaded_ == nullptr; }
  v1::SessionInfo Describe() const;

  // Whether a worker's session is one of its parts there, or may be one that
  // routers still use.
  bool MayUse(const MemberKey& worker, const std::string& session) const;

 private:
  // Experts on one worker.
  struct Part {
    int64_t id = 0;
    std::string session;  // the worker's
    std::vector<int32_t> experts;
    bool ready = false;     // else it is being loaded
    bool kept = false;      // an earlier coordinator had it loaded
    bool obsolete = false;  // goes when others have its experts
    // Since this version of the placement it is not used; 0: it is.
    int64_t unused_since = 0;
  };
  // A member that says that it is UNAVAILABLE is asked again so often before a
  // load has failed.
  static constexpr int kMaxRefusals = 20;

  struct Router {
    enum {
      kLoading,
      kLoaded,
      kPaused,   // it could not load
      kLeftOut,  // it is of a release that runs other segments
    } state = kLoading;
    int64_t version = 0;   // of the placement that it has
    bool current = false;  // it answers for the name: no standby
  };

  ServedModel(const ServingEnvironment& environment, std::string session,
              ServableCheckpoint checkpoint, int32_t replicas, bool standby,
              v1::Placement kept, ServingPlan plan, OnLoaded on_loaded);

  // Forgets members that are lost.
  void DropLost();
  // Where experts should be. Errors: those of PlaceReplicas.
  absl::StatusOr<ExpertLists> WantedLists(
      const std::vector<Member>& workers) const;
  void LoadPart(const Member& worker, std::vector<int32_t> experts,
                bool kept = false);
  // Asks workers that are there for the first time for what they had.
  void LoadKept(const std::vector<Member>& workers);
  void OnPartLoaded(const MemberKey& worker, int64_t part,
                    const absl::Status& status);
  // Later: the worker has no such part, or has room again; goes on.
  void RetryPart(const MemberKey& worker, int64_t part, absl::Duration pause);
  // Until a member that is there is asked again, after so many refusals in a
  // row, the last of them UNAVAILABLE or not.
  absl::Duration RetryPause(bool unavailable, int refusals) const;
  // Tells routers where experts are, if that has changed.
  void PublishPlacement();
  void UpdateRouter(const MemberKey& key);
  void LoadRouters();
  // `current`: as the command said.
  void OnRouterLoaded(const MemberKey& router, int64_t version, bool current,
                      const absl::Status& status);
  void OnRouterUpdated(const MemberKey& router, int64_t version, bool current,
                       const absl::Status& status);
  // Releases parts that no router uses any more.
  void ReleaseUnused();
  // `workers` are those that parts were planned for: one that has joined since
  // has none yet, which is not how it is to be from now on.
  void RememberHome(const std::vector<Member>& workers);
  void CheckLoaded();
  // All routers that can have it do.
  void OnAllLoaded(int64_t routers);
  void Fail(const absl::Status& status);
  void Send(const MemberKey& key, v1::Command command,
            std::function<void(ServedModel&, const absl::Status&)> done);

  // Routers may be answering with it, so what fails takes nothing away.
  bool may_serve() const { return loaded_ || adopted_; }
  bool loading_parts() const;
  bool loading_kept_parts() const;
  Part* FindPart(const MemberKey& worker, int64_t part);
  // Live replicas of each expert, [E]; those that routers may call.
  std::vector<int32_t> CountReplicas() const;

  const ServingEnvironment environment_;
  const std::string session_;
  const ServableCheckpoint checkpoint_;
  int32_t replicas_;
  const bool adopted_;  // an earlier coordinator had it served
  v1::Placement kept_;  // of workers that have not been there yet
  const ServingPlan plan_;
  OnLoaded on_loaded_;  // null when it was told
  bool standby_;        // until it is loaded
  bool loaded_ = false;
  bool released_ = false;
  int64_t last_part_ = 0;
  std::vector<double> load_;
  std::map<MemberKey, std::vector<Part>> parts_;
  // Experts that a worker could take at most: it has refused more, not long
  // ago.
  std::map<MemberKey, int32_t> room_;
  // Where experts were when all was well, by the names of the workers then: a
  // worker that was started again gets what it had.
  std::map<std::vector<std::string>, ExpertLists> homes_;
  v1::Placement placement_;  // as routers know it, or are being told
  std::map<MemberKey, Router> routers_;
  std::map<std::string, int> refusals_;  // by member, since it last could load
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVED_MODEL_H_
