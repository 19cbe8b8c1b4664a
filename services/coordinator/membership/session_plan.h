// SessionPlan: what each member of a session is told to load.

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

  // The workers that hold experts, as in placement.workers, and what each of
  // them loads. None for a dense model; workers beyond the number of experts
  // take no part.
  std::vector<MemberKey> workers;
  std::vector<v1::LoadSession> worker_loads;

  // See MicrobatchSchedule: the largest that there is memory for.
  int32_t microbatch_window = 1;

  // The same for every router.
  v1::LoadSession router_load;

  const v1::Placement& placement() const {
    return router_load.router().placement();
  }
};

// What a training session starts from.
struct TrainingStart {
  int64_t step = 0;                  // that count as made
  int64_t skipped_steps = 0;         // of these, the last, not in the source
  std::string checkpoint_directory;  // empty: the job's seed
  std::string tokenizer_directory;
};

// Splits the job's training program and places the experts on `workers`. With
// buddies, the experts of each of plan.workers are replicated on the next one,
// and the last one's on the first, if there are two: in another failure domain,
// if that can be.
//
// `dense_bytes` is the memory that the coordinator has for the dense side; 0:
// it does not have that, or need not look.
//
// Errors: those of building and splitting the program; ResourceExhausted if the
// coordinator or a worker has not got the memory (training_memory.h).
absl::StatusOr<SessionPlan> PlanTraining(const std::string& session,
                                         const TrainingJob& job,
                                         const TrainingStart& start,
                                         const std::vector<Member>& workers,
                                         int64_t dense_bytes,
                                         int64_t placement_version);

// What members load of a served model, wherever its experts are placed.
struct ServingPlan {
  // A worker's, but for its session and its experts.
  v1::LoadSession worker_load;
  // A router's, but for the placement.
  v1::LoadSession router_load;
  // Of one expert's weights in all layers, as a worker holds them.
  int64_t expert_bytes = 0;
};

// Splits encoder and decoder. Errors: those of building and splitting them.
absl::StatusOr<ServingPlan> PlanServing(
    const std::string& session, const ModelConfig& model,
    const std::string& checkpoint_directory);

// The per-expert, or the other parameters of a model.
std::vector<ParameterSpec> ParametersOf(const ModelConfig& model,
                                        bool per_expert);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_MEMBERSHIP_SESSION_PLAN_H_
