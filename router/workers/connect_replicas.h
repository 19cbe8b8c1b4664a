// Converts the coordinator's placement to connections.

#ifndef ROUTER_WORKERS_CONNECT_REPLICAS_H_
#define ROUTER_WORKERS_CONNECT_REPLICAS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "router/workers/worker_connection.h"
#include "services/exchange/exchange_policy.h"

namespace gshard {

// An expert may have several holders or none. `session` is the default for
// entries without one. Errors: InvalidArgument if a list is not ascending or
// not below `num_experts`, or an address is invalid.
absl::StatusOr<std::shared_ptr<const ReplicaGroup>> ConnectReplicas(
    const v1::Placement& placement, const std::string& session,
    int64_t num_experts, WorkerConnections& connections);

// Errors: InvalidArgument unless each expert of a group that ConnectReplicas
// has made is held once, as required for training.
absl::Status CheckHeldOnce(const ReplicaGroup& group, int64_t num_experts);

}  // namespace gshard

#endif  // ROUTER_WORKERS_CONNECT_REPLICAS_H_
