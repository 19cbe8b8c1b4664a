// Estimates, before anything is loaded, of the memory that training takes on
// the holders of parameters.
//
// A microbatch that has been handed out and is not in the sum yet is run, or is
// early (MicrobatchSchedule). It keeps its gradient, and while it is run the
// rows that its backward segments need. So the window decides how much a step
// holds at most, and is no larger than there is memory for.

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
  double sum = 0;         // of gradients
  double gradient = 0;    // of a microbatch
  double rows = 0;        // that a microbatch keeps while it is run

  double Total(int64_t window) const {
    return parameters + sum + static_cast<double>(window) * (gradient + rows);
  }
};

// Of an expert worker that holds so many experts of each layer, and replicas of
// others.
TrainingMemory MemoryOfWorker(const TrainingJob& job, int64_t experts,
                              int64_t replicas);

// Of a coordinator that has the dense parameters. The job's model has its
// vocabularies.
TrainingMemory MemoryOfCoordinator(const TrainingJob& job);

// The largest window that `capacity` bytes (0: any number) have room for, at
// most a step's microbatches. `holder` is who has them. Errors:
// ResourceExhausted if there is not room for one microbatch.
absl::StatusOr<int32_t> LargestWindow(const TrainingJob& job,
                                      const TrainingMemory& memory,
                                      int64_t capacity,
                                      absl::string_view holder);

// Whether the job fits the `workers`, spread evenly over them. Errors: those of
// LargestWindow.
absl::Status CheckTrainingMemory(const TrainingJob& job,
                                 const std::vector<Member>& workers);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_MEMBERSHIP_TRAINING_MEMORY_H_
