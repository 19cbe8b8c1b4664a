// DenseReduction: the routers that jointly own the dense parameters in one
// attempt at a job, and their rendezvous. Decisions and messages only: no
// threads, no communication.
//
// The routers are fixed for the attempt. Like a worker's loss, the loss of one
// loses its parameters.

#ifndef SERVICES_COORDINATOR_TRAINING_DENSE_REDUCTION_H_
#define SERVICES_COORDINATOR_TRAINING_DENSE_REDUCTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/coordinator/membership/members.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/coordinator/training/fan_out.h"
#include "services/coordinator/training/shard_holders.h"
#include "services/train/tensor_owners.h"

namespace gshard {

// Where a job's dense gradients are summed. The result is the same, but for the
// last bits if routers are on GPUs: there the routers' norms and updates are
// their devices' (see ARCHITECTURE.md, "Experts on a GPU").
enum class ReduceWay {
  kCoordinator,  // the coordinator, which holds the dense parameters
  kGloo,         // the routers, over TCP
  kNccl,         // the routers, between GPUs
};

// "coordinator", "gloo", "nccl".
absl::string_view ReduceWayName(ReduceWay way);

// Errors: InvalidArgument for another name.
absl::StatusOr<ReduceWay> ReduceWayFromName(absl::string_view name);

// Not thread-safe.
class DenseReduction {
 public:
  // `routers` jointly own the dense parameters of `job`, and start from
  // `start`. REQUIRES: `way` is not kCoordinator; at least one router.
  DenseReduction(ReduceWay way, const TrainingJob& job,
                 const TrainingStart& start, std::vector<MemberKey> routers);

  // By rank.
  const std::vector<MemberKey>& routers() const { return routers_; }
  std::optional<int> RankOf(const MemberKey& router) const;

  // The router's part of its LoadSession.
  v1::DenseGroup GroupOf(int rank) const;

  // A router has loaded. Errors: InvalidArgument unless it has a valid address
  // for each router.
  absl::Status OnLoaded(int rank, const v1::SessionLoaded& loaded);
  bool all_loaded() const;
  // One command for each router. REQUIRES: all_loaded().
  MemberCommands Connect(const std::string& session) const;

  // By rank.
  std::vector<ShardHolder> holders() const;

 private:
  const std::vector<MemberKey> routers_;
  const TensorOwners owners_;
  v1::DenseGroup group_;                                  // without the rank
  std::vector<std::optional<v1::SessionLoaded>> loaded_;  // by rank
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_DENSE_REDUCTION_H_
