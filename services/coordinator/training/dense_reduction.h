// DenseReduction: the routers of one attempt at a job that own its dense
// parameters among themselves, and their rendezvous. Decisions and messages
// only: no threads, no communication.
//
// The routers are the same for as long as the attempt lives. One that is lost
// takes what it owns with it, as a worker does.

#ifndef SERVICES_COORDINATOR_TRAINING_DENSE_REDUCTION_H_
#define SERVICES_COORDINATOR_TRAINING_DENSE_REDUCTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/coordinator/membership/members.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/coordinator/training/fan_out.h"
#include "services/coordinator/training/shard_holders.h"
#include "services/train/tensor_owners.h"

namespace gshard {

// Who sums the dense gradients of a job. The result is the same.
enum class ReduceWay {
  kCoordinator,  // the coordinator, which has the dense parameters
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
  // `routers` own the dense parameters of `job` together, and start as `start`
  // says. A message between them may take `timeout`.
  // REQUIRES: `way` is not kCoordinator; at least one router.
  DenseReduction(ReduceWay way, const TrainingJob& job,
                 const TrainingStart& start, std::vector<MemberKey> routers,
                 absl::Duration timeout);

  // By rank.
  const std::vector<MemberKey>& routers() const { return routers_; }
  std::optional<int> RankOf(const MemberKey& router) const;

  // What a router is told to load, beside what all are.
  v1::DenseGroup GroupOf(int rank) const;

  // A router has loaded. Errors: InvalidArgument if its addresses are not one
  // for each router, of a sound size.
  absl::Status OnLoaded(int rank, const v1::SessionLoaded& loaded);
  bool all_loaded() const;
  // One command for each router. REQUIRES: all_loaded().
  MemberCommands Connect(const std::string& session) const;

  // In the order of their ranks.
  std::vector<ShardHolder> holders() const;

 private:
  const std::vector<MemberKey> routers_;
  const TensorOwners owners_;
  v1::DenseGroup group_;                                  // but for the rank
  std::vector<std::optional<v1::SessionLoaded>> loaded_;  // by rank
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_DENSE_REDUCTION_H_
