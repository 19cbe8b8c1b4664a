// The served models that a caller may see.

#ifndef SERVICES_COORDINATOR_SERVING_VISIBLE_MODELS_H_
#define SERVICES_COORDINATOR_SERVING_VISIBLE_MODELS_H_

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/rpc/security/caller.h"

namespace gshard {

// Takes the models out of `response`, and out of members' heartbeats, that a
// caller with limits may neither translate with nor load. Sessions of training
// stay if their job is in `response`.
void HideModels(const Caller& caller, v1::DescribeResponse* response);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_VISIBLE_MODELS_H_
