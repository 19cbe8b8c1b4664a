// Estimates, before anything is loaded, the memory that training takes on the
// holders of parameters.
//
// A microbatch that has been assigned and is not in the sum yet is either
// running or early (MicrobatchSchedule). It holds its gradient, and while it
// runs also the rows that its backward segments need. So the window bounds a
// step's memory, and is chosen to fit.
//
// Steps that go on while a checkpoint is written take a second copy of
// parameters and optimizer state. A job is not refused for it: see
// SessionPlan::asynchronous_checkpoints.

#ifndef SERVICES_COORDINATOR_MEMBERSHIP_TRAINING_MEMORY_H_
#define SERVICES_COORDINATOR_MEMBERSHIP_TRAINING_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/config/training_job.h"
#include "services/coordinator/membership/members.h"

namespace gshard {

// Bytes of one process. Parameters are exact, rows an estimate: spread evenly
// over experts.
struct TrainingMemory {
  double parameters = 0;  // with optimizer state, rounded copies and replicas
  double sum = 0;         // gradient sum
  double gradient = 0;    // gradient per microbatch
  double rows = 0;        // rows per running microbatch
  double copy = 0;        // second copy while a checkpoint is written

  double Total(int64_t window, bool asynchronous_checkpoints = false) const {
    return parameters + sum + static_cast<double>(window) * (gradient + rows) +
           (asynchronous_checkpoints ? copy : 0);
  }
};

// For an expert worker that holds this many experts of each layer, and replicas
// of others.
TrainingMemory MemoryOfWorker(const TrainingJob& job, int64_t experts,
                              int64_t replicas);

// For a coordinator that holds the dense parameters. The job's model must have
// its vocabulary sizes.
TrainingMemory MemoryOfCoordinator(const TrainingJob& job);

// The largest window that fits into `capacity` bytes (0: unlimited), at most a
// step's microbatches. `holder` names the process in errors. Errors:
// ResourceExhausted if not even one microbatch fits.
absl::StatusOr<int32_t> LargestWindow(const TrainingJob& job,
                                      const TrainingMemory& memory,
                                      int64_t capacity,
                                      absl::string_view holder,
                                      bool asynchronous_checkpoints = false);

// A worker's part of a training session.
struct WorkerShare {
  Member worker;
  std::vector<int32_t> experts;     // ascending; not empty
  std::vector<int32_t> replicated;  // as the buddy of another
};

// Spreads the job's experts evenly over `workers`, or over as many of these as
// there are experts, in the order of the session: see PlanTraining.
std::vector<WorkerShare> ShareExperts(const TrainingJob& job,
                                      const std::vector<Member>& workers);

// The largest window for which all have the memory. Errors: those of the other
// LargestWindow.
absl::StatusOr<int32_t> LargestWindow(const TrainingJob& job,
                                      const std::vector<WorkerShare>& shares,
                                      bool asynchronous_checkpoints = false);

// As many of `workers` as have the memory for the job together, if steps wait
// for checkpoints: those that offer the least are left out, while more than
// `least` are left. Errors: ResourceExhausted if there are none, as for all of
// them.
absl::StatusOr<std::vector<Member>> WorkersWithMemory(
    const TrainingJob& job, std::vector<Member> workers, size_t least);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_MEMBERSHIP_TRAINING_MEMORY_H_
