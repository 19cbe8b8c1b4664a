// SessionPlan: what each member of a session loads.

#ifndef SERVICES_COORDINATOR_MEMBERSHIP_SESSION_PLAN_H_
#define SERVICES_COORDINATOR_MEMBERSHIP_SESSION_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/config/training_job.h"
#include "services/coordinator/membership/members.h"
#include "services/model/parameters.h"

namespace gshard {

struct SessionPlan {
  std::string session;

  // The workers that hold experts, in the order of placement.workers, and each
  // one's load command. Empty for a dense model; workers beyond the number of
  // experts are not used.
  std::vector<MemberKey> workers;
  std::vector<v1::LoadSession> worker_loads;

  // The most that a worker sends its buddy in a step; 0: there are no buddies.
  int64_t pushed_bytes = 0;

  // See MicrobatchSchedule: the largest that fits into memory.
  int32_t microbatch_window = 1;

  // Steps go on while a checkpoint is written: the job allows it, and a second
  // copy of the parameters fits into memory beside at least half of the window
  // that there would be without.
  bool asynchronous_checkpoints = false;

  // The same for every router.
  v1::LoadSession router_load;

  const v1::Placement& placement() const {
    return router_load.router().placement();
  }
};

// The state that a training session starts from.
struct TrainingStart {
  int64_t step = 0;                  // steps that count as done
  int64_t skipped_steps = 0;         // the last of these, not in the source
  std::string checkpoint_directory;  // empty: the job's seed
  bool weights_only = false;         // of it, without optimizer state
  std::string tokenizer_directory;
};

// Where members get the job's parameters.
v1::ParameterSource SourceOf(const TrainingJob& job,
                             const TrainingStart& start);

// Splits the job's training program and places the experts on `workers`. With
// buddies, the experts of each of plan.workers are replicated on the next one,
// and the last one's on the first, if there are two: in another failure domain
// if possible.
//
// `dense_bytes` is the coordinator's memory for dense parameters; 0: it holds
// none, or there is no limit.
//
// Errors: those of building and splitting the program; ResourceExhausted if the
// coordinator or a worker lacks the memory (training_memory.h).
absl::StatusOr<SessionPlan> PlanTraining(const std::string& session,
                                         const TrainingJob& job,
                                         const TrainingStart& start,
                                         const std::vector<Member>& workers,
                                         int64_t dense_bytes,
                                         int64_t placement_version);

// What members load of a served model, independent of placement.
struct ServingPlan {
  // A worker's load, without session and experts.
  v1::LoadSession worker_load;
  // A router's load, without the placement.
  v1::LoadSession router_load;
  // Bytes of one expert's weights in all layers, as stored on a worker.
  int64_t expert_bytes = 0;
};

// Splits encoder and decoder. Errors: those of building and splitting them.
absl::StatusOr<ServingPlan> PlanServing(
    const std::string& session, const ModelConfig& model,
    const std::string& checkpoint_directory);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_MEMBERSHIP_SESSION_PLAN_H_
