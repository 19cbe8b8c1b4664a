// ShardHolders: the members that hold the parameters of one attempt, besides
// the coordinator, and the commands to them: expert workers hold their experts,
// and the routers of a DenseReduction the dense parameters that they own.
// Messages and checks only: nothing is sent.

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
      tensors;  // held only here; may be empty for a router
};

// "expert worker 'w'".
std::string NameOf(const ShardHolder& holder);

// The workers of a plan, in its order.
std::vector<ShardHolder> WorkersOf(const SessionPlan& plan,
                                   const ModelConfig& model);

// One command per holder, in order. Routers also get `ran_by`: the rank of the
// router that ran each microbatch.
MemberCommands PrepareCommands(const std::vector<ShardHolder>& holders,
                               const v1::PrepareStep& prepare,
                               const std::vector<int32_t>& ran_by);
MemberCommands CommitCommands(const std::vector<ShardHolder>& holders,
                              const v1::CommitStep& commit);

// One command for each holder that has tensors. Shards are named by `tag`,
// index and `attempt`, since a holder of an earlier attempt, or an earlier
// owner of the folder, may still be writing. The workers `lost`, by index, are
// omitted, and their buddies write their tensors.
MemberCommands WriteCommands(const std::vector<ShardHolder>& holders,
                             const v1::WriteCheckpoint& write,
                             const std::string& tag, int64_t attempt,
                             const std::set<size_t>& lost = {});

// Collects the holders' replies to PrepareCommands. Errors: InvalidArgument
// unless each gives the norms of its tensors.
absl::Status AddNorms(const std::vector<ShardHolder>& holders, int64_t step,
                      absl::Span<const v1::CommandReply> replies,
                      std::vector<SquaredNorm>* norms);

// Checks that the step is finite. Errors: FailedPrecondition naming the first
// tensor, in model order, whose gradient is not finite.
absl::Status CheckFinite(const ModelConfig& model, int64_t step, double loss,
                         const std::vector<SquaredNorm>& norms);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_SHARD_HOLDERS_H_
