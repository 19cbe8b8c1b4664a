#include "router/worker_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/cluster/placement.h"

namespace gshard {

absl::StatusOr<WorkerGroup> ConnectWorkers(const v1::Placement& placement,
                                           int64_t num_experts,
                                           WorkerConnections& connections) {
  WorkerGroup group;
  for (const v1::WorkerPlacement& worker : placement.workers()) {
    group.experts.emplace_back(worker.experts().begin(),
                               worker.experts().end());
  }
  // A dense model needs no workers.
  if (num_experts == 0) return WorkerGroup();
  const absl::Status valid = ValidatePlacement(
      {.version = placement.version(), .experts_of_worker = group.experts},
      static_cast<int32_t>(num_experts));
  if (!valid.ok()) return Annotate(valid, "placement");
  for (int w = 0; w < placement.workers_size(); ++w) {
    const v1::WorkerPlacement& worker = placement.workers(w);
    auto connection = connections.Get(worker.name(), worker.address());
    if (!connection.ok()) {
      return Annotate(connection.status(),
                      absl::StrCat("placement.workers[", w, "].address"));
    }
    group.connections.push_back(*std::move(connection));
  }
  return group;
}

}  // namespace gshard
