// JobRouters: the routers of an attempt at a job: which have loaded it, and
// which are asked to, whenever they join.

#ifndef SERVICES_COORDINATOR_TRAINING_JOB_ROUTERS_H_
#define SERVICES_COORDINATOR_TRAINING_JOB_ROUTERS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/coordinator/training/dense_reduction.h"
#include "services/coordinator/training/fan_out.h"
#include "services/coordinator/training/job_context.h"

namespace gshard {

// Used only on the job's thread.
class JobRouters {
 public:
  // `load` is sent to all. Those that own dense parameters are exactly those of
  // `reduction`, which may be null. Both pointers outlive this.
  JobRouters(JobContext* context, v1::LoadSession load,
             DenseReduction* reduction)
      : context_(context), load_(std::move(load)), reduction_(reduction) {}

  // Asks new routers to load the session, and forgets those that are gone.
  void Reconcile();

  // Processes replies that have arrived; `training`: the job does not wait for
  // them. From then on, and in later attempts, a router that cannot load is
  // left out as long as another has loaded, or may yet. Errors: errors that
  // fail the job, or of a router that owns parameters: Unavailable if lost.
  absl::Status Poll(bool training);
  // The router whose error Poll() has returned.
  const MemberKey& failed() const { return failed_; }
  // When Poll() has something to do without a new event.
  MonotonicTime next() const;

  // Routers that have loaded, in that order.
  const std::vector<MemberKey>& ready() const { return ready_; }
  // Routers that have, or may have, loaded.
  std::vector<MemberKey> all() const;

 private:
  struct Router {
    // Null: not asked, before `again`.
    std::shared_ptr<const MemberReplies> load;
    MonotonicTime again = MonotonicTime::InfiniteFuture();
  };

  void Load(const MemberKey& key, Router* router);
  absl::Status OnLoaded(const MemberKey& key, Router* router, bool training);
  // Whether a router has loaded, or may yet without being mended.
  bool HasOthers() const;
  // Says that the job, before its first step, waits for others than `key`.
  void AwaitOthers(const MemberKey& key, const absl::Status& why);
  absl::Status Take(const MemberKey& key, const v1::SessionLoaded& loaded);
  // Checks that it reads the same text as the others.
  absl::Status CheckText(const MemberKey& key, const v1::SessionLoaded& loaded);

  JobContext* const context_;
  const v1::LoadSession load_;
  DenseReduction* const reduction_;
  std::map<MemberKey, Router> routers_;
  std::vector<MemberKey> ready_;
  MemberKey failed_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_JOB_ROUTERS_H_
