#include "router/workers/connect_replicas.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/cluster/placement.h"

namespace gshard {

absl::StatusOr<std::shared_ptr<const ReplicaGroup>> ConnectReplicas(
    const v1::Placement& placement, const std::string& session,
    int64_t num_experts, WorkerConnections& connections) {
  auto group = std::make_shared<ReplicaGroup>();
  group->version = placement.version();
  for (int w = 0; w < placement.workers_size(); ++w) {
    const v1::WorkerPlacement& worker = placement.workers(w);
    const std::string field = absl::StrCat("placement.workers[", w, "]");
    int64_t previous = -1;
    for (const int32_t expert : worker.experts()) {
      if (expert <= previous || expert >= num_experts) {
        return absl::InvalidArgumentError(
            absl::StrCat(field, ".experts: expected ascending experts below ",
                         num_experts, ", got ", expert, " after ", previous));
      }
      previous = expert;
    }
    auto connection =
        connections.Get(worker.name(), worker.address(), worker.incarnation());
    if (!connection.ok()) {
      return Annotate(connection.status(), field + ".address");
    }
    group->holdings.push_back(
        {.worker = worker.name(),
         .session = worker.session().empty() ? session : worker.session(),
         .experts = {worker.experts().begin(), worker.experts().end()},
         .stub = *std::move(connection)});
  }
  return group;
}

absl::Status CheckHeldOnce(const v1::Placement& placement,
                           int64_t num_experts) {
  if (num_experts == 0) return absl::OkStatus();  // a dense model
  Placement held{.version = placement.version(), .experts_of_worker = {}};
  for (const v1::WorkerPlacement& worker : placement.workers()) {
    held.experts_of_worker.emplace_back(worker.experts().begin(),
                                        worker.experts().end());
  }
  const absl::Status valid =
      ValidatePlacement(held, static_cast<int32_t>(num_experts));
  return valid.ok() ? valid : Annotate(valid, "placement");
}

}  // namespace gshard
