#include "router/workers/connect_replicas.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

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

absl::Status CheckHeldOnce(const ReplicaGroup& group, int64_t num_experts) {
  std::vector<int> holders(num_experts);
  for (const ReplicaHolding& holding : group.holdings) {
    for (const int32_t expert : holding.experts) ++holders[expert];
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    if (holders[e] == 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("placement: expected expert ", e,
                     " on one worker, got it on ", holders[e]));
  }
  return absl::OkStatus();
}

}  // namespace gshard
