// ShardHolders: who holds the parameters of one attempt, beside the
// coordinator, and what they are told: expert workers their experts, and the
// routers of a DenseReduction the dense parameters that they own. Messages and
// checks only: nothing is sent.

#ifndef SERVICES_COORDINATOR_TRAINING_SHARD_HOLDERS_H_
#define SERVICES_COORDINATOR_TRAINING_SHARD_HOLDERS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/cluster/membership.h"
#include "services/config/model_config.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/coordinator/training/fan_out.h"
#include "services/train/parameter_store.h"

namespace gshard {

struct ShardHolder {
  MemberKey member;
  MemberRole role = MemberRole::kExpertWorker;
  std::vector<std::string>
      tensors;  // that it alone has; a router may have none
};

// "expert worker 'w'".
std::string NameOf(const ShardHolder& holder);

// The workers of a plan, in its order.
std::vector<ShardHolder> WorkersOf(const SessionPlan& plan,
                                   const ModelConfig& model);

// One command for each holder, in their order. Routers are told who ran which
// microbatch, too: `ran_by`, by rank.
MemberCommands PrepareCommands(const std::vector<ShardHolder>& holders,
                               const v1::PrepareStep& prepare,
                               const std::vector<int32_t>& ran_by);
MemberCommands CommitCommands(const std::vector<ShardHolder>& holders,
                              const v1::CommitStep& commit);

// One for each holder that has something. Shards are named by `tag`, place and
// `attempt`, for a holder of an earlier attempt, or owner of the folder, may
// write still. Workers that are `lost`, by their places, are left out, and
// their buddies write what they had.
MemberCommands WriteCommands(const std::vector<ShardHolder>& holders,
                             const v1::WriteCheckpoint& write,
                             const std::string& tag, int64_t attempt,
                             const std::set<size_t>& lost = {});

// Adds what the holders replied to PrepareCommands. Errors: InvalidArgument
// unless each gives the norms of its tensors.
absl::Status AddNorms(const std::vector<ShardHolder>& holders, int64_t step,
                      absl::Span<const v1::CommandReply> replies,
                      std::vector<SquaredNorm>* norms);

// Whether the step can be made. Errors: FailedPrecondition naming the first
// tensor, in the order of the model, whose gradient is not finite.
absl::Status CheckFinite(const ModelConfig& model, int64_t step, double loss,
                         const std::vector<SquaredNorm>& norms);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_SHARD_HOLDERS_H_
