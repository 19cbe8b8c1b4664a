// WorkerGroup: the expert workers of a session and what each of them holds.

#ifndef ROUTER_WORKER_GROUP_H_
#define ROUTER_WORKER_GROUP_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "router/worker_connection.h"
#include "services/segments/exchange.h"

namespace gshard {

struct WorkerGroup {
  ExpertsOfWorkers experts;
  std::vector<std::shared_ptr<WorkerConnection>> connections;  // as experts
};

// Errors: InvalidArgument if the placement does not hold each of `num_experts`
// experts once, or an address is not one.
absl::StatusOr<WorkerGroup> ConnectWorkers(const v1::Placement& placement,
                                           int64_t num_experts,
                                           WorkerConnections& connections);

}  // namespace gshard

#endif  // ROUTER_WORKER_GROUP_H_
