// ExpertAssignment: which experts of a served model each worker is to have.
// Pure; how workers come to have them is a matter of serving_diff.h.

#ifndef SERVICES_COORDINATOR_SERVING_EXPERT_ASSIGNMENT_H_
#define SERVICES_COORDINATOR_SERVING_EXPERT_ASSIGNMENT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "services/coordinator/serving/served_model.h"

namespace gshard {

// From what `model.assignment` says of the workers that are there and, of those
// that it does not know, from the bundles that they have. Nothing moves unless
// experts lack replicas, share a failure domain that they need not share, or
// the model's load makes it worth while; a worker with a bundle that it could
// not load keeps what it has. One that wants to leave has nothing, or, where
// others have no room for some of it, all that routers call. Calling again with
// the result changes nothing. Empty without workers or experts. Errors: those
// of PlaceReplicas, where no worker has anything yet.
absl::StatusOr<ExpertAssignment> AssignExperts(const ServedModel& model,
                                               const ObservedMembers& members);

// Experts whose replicas, of those that routers may call, share a domain; see
// replica_placement.h.
int32_t CountSharing(const ServedModel& model, const ObservedMembers& members);

// Records the experts' locations in model->homes if everything assigned is
// placed and no expert lacks replicas.
void RecordHomes(ServedModel* model);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_EXPERT_ASSIGNMENT_H_
