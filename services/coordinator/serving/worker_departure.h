// WorkerDeparture: which workers may go, as pure functions of the observed and
// the desired state of served models.
//
// What a worker that wants to leave holds is placed on those that stay, by
// AssignExperts, as if it had been lost; but it serves until routers call the
// others, and its bundles have been released then. So it may go when it holds
// nothing that routers may call.

#ifndef SERVICES_COORDINATOR_SERVING_WORKER_DEPARTURE_H_
#define SERVICES_COORDINATOR_SERVING_WORKER_DEPARTURE_H_

#include <map>
#include <string>

#include "services/coordinator/serving/served_model.h"

namespace gshard {

struct WorkerDeparture {
  // If the worker were lost, every expert of the models that serve would have a
  // replica that routers may call on another one that stays.
  bool can_be_lost = false;

  // Of one that wants to leave.
  bool may_leave = false;
  std::string why;  // it may, or what it waits for, for people
};

// Of each expert worker.
std::map<MemberKey, WorkerDeparture> PlanDepartures(
    const ObservedMembers& members, const DesiredModels& desired);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_WORKER_DEPARTURE_H_
