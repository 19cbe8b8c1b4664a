// The served models that a caller may see.

#ifndef SERVICES_COORDINATOR_SERVING_VISIBLE_MODELS_H_
#define SERVICES_COORDINATOR_SERVING_VISIBLE_MODELS_H_

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/rpc/security/caller.h"

namespace gshard {

// Removes from `response`, and from members' heartbeats, the models that a
// caller with limits may neither translate with nor load. Training sessions
// stay if their job is in `response`.
void HideModels(const Caller& caller, v1::DescribeResponse* response);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_VISIBLE_MODELS_H_
