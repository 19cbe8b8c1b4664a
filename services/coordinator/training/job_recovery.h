// How a job continues after an attempt has ended. Decisions only.
//
// Every step is a function of the job and of the previous step, so a repeated
// step has the same bits, on any members.

#ifndef SERVICES_COORDINATOR_TRAINING_JOB_RECOVERY_H_
#define SERVICES_COORDINATOR_TRAINING_JOB_RECOVERY_H_

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gshard {

// Whether a retry may help: a member was lost or too slow.
bool IsPassing(const absl::Status& status);

// Failures of a microbatch that end an attempt at the job.
inline constexpr int32_t kMaxMicrobatchFailures = 8;

// The pause before retry number `attempt` of a microbatch: `delay`, doubled
// with each attempt up to number kMaxMicrobatchFailures.
absl::Duration RetryDelay(absl::Duration delay, int32_t attempt);

// Pause before a router that could not load the job, but is still a member, is
// asked again; before another attempt to serve what is trained; and before a
// disk or store that is away from the coordinator or a member is used again,
// where it doubles with each failure.
inline constexpr absl::Duration kReloadDelay = absl::Seconds(1);

// Counts consecutive lost attempts without a new step.
class RecoveryBudget {
 public:
  explicit RecoveryBudget(int64_t most) : most_(most) {}

  // An attempt that had committed `step` is lost. Errors: `cause`, annotated,
  // if the budget is exceeded.
  absl::Status RecordLoss(int64_t step, const absl::Status& cause);

 private:
  const int64_t most_;
  int64_t in_a_row_ = 0;
  int64_t best_step_ = -1;  // committed at the last of them
};

// Whether buddies have the state of the workers `lost`: worker w of `workers`
// replicates w - 1, the first the last.
bool BuddiesAreLeft(const std::set<size_t>& lost, size_t workers);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_JOB_RECOVERY_H_
