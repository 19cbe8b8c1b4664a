// WorkerDeparture: which workers may leave, as pure functions of the observed
// and the desired state of served models.
//
// AssignExperts places a leaving worker's experts on the workers that stay, as
// if it had been lost; but it serves until routers call the others and its
// bundles are released. So it may leave when it holds nothing that routers may
// call.

#ifndef SERVICES_COORDINATOR_SERVING_WORKER_DEPARTURE_H_
#define SERVICES_COORDINATOR_SERVING_WORKER_DEPARTURE_H_

#include <map>
#include <string>

#include "services/coordinator/serving/served_model.h"

namespace gshard {

struct WorkerDeparture {
  // Every expert of the serving models has another callable replica, on a
  // worker that stays.
  bool can_be_lost = false;

  // If it is leaving.
  bool may_leave = false;
  std::string why;  // why it may leave, or what it waits for; human-readable
};

// Plans for each expert worker.
std::map<MemberKey, WorkerDeparture> PlanDepartures(
    const ObservedMembers& members, const DesiredModels& desired);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_WORKER_DEPARTURE_H_
