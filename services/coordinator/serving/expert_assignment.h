// ExpertAssignment: which experts of a served model each worker should have.
// Pure functions; serving_diff.h derives the commands.

#ifndef SERVICES_COORDINATOR_SERVING_EXPERT_ASSIGNMENT_H_
#define SERVICES_COORDINATOR_SERVING_EXPERT_ASSIGNMENT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "services/coordinator/serving/served_model.h"

namespace gshard {

// Starts from `model.assignment` of the present workers and, for unknown
// workers, from their bundles. Nothing moves unless experts lack replicas,
// share a failure domain unnecessarily, or the model's load makes it
// worthwhile; a worker with a bundle that it could not load keeps what it has.
// Workers have room for what they have, and where the bundles of other models,
// and what is promised to these, leave some.
// A leaving worker gets nothing, except experts that routers call and others
// have no room for. Calling again with the result changes nothing. Empty
// without workers or experts. Errors: those of PlaceReplicas, if no worker has
// anything yet.
absl::StatusOr<ExpertAssignment> AssignExperts(const ServedModel& model,
                                               const ObservedMembers& members);

// Counts what the assignment adds to workers' bundles as promised, so that
// models that are assigned before it is loaded leave that room.
void PromiseRoom(const ServedModel& model, ObservedMembers* members);

// Number of experts whose callable replicas share a domain; see
// replica_placement.h.
int32_t CountSharing(const ServedModel& model, const ObservedMembers& members);

// Records the experts' locations in model->homes if everything assigned is
// placed and no expert lacks replicas.
void RecordHomes(ServedModel* model);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_EXPERT_ASSIGNMENT_H_
