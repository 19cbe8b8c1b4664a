// Places the replicas of a served model's experts: on which workers, and how
// many per expert. Every MoE layer has the same placement.
//
// Replicas of an expert are kept in different failure domains, at the widest
// possible level, at any cost; see failure_domains.h.
//
// The cost of a placement is the time that the slowest worker takes for its
// share of a second's rows, where an expert's replicas share its rows evenly.
// Pure functions. E experts, W workers.

#ifndef SERVICES_CLUSTER_REPLICA_PLACEMENT_H_
#define SERVICES_CLUSTER_REPLICA_PLACEMENT_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/cluster/placement.h"

namespace gshard {

inline constexpr int32_t kMaxReplicas = 16;

struct ReplicaProblem {
  int32_t num_experts = 0;  // 0 to kMaxPlacedExperts

  // Target number of replicas per expert, 1 to kMaxReplicas; W if there are
  // fewer workers.
  int32_t replicas = 1;

  // [E] rows per second, up to a factor; finite, at least 0. Empty or all 0 if
  // unknown: experts then count equally.
  std::vector<double> load;

  struct Worker {
    double rows_per_second = 1.0;  // relative to the others; positive
    int32_t max_experts = std::numeric_limits<int32_t>::max();  // memory limit
    std::string failure_domain = {};

    bool operator==(const Worker&) const = default;
  };
  std::vector<Worker> workers;  // not empty
};

// The cost above; 0 without experts. An expert without a replica costs nothing.
double PlacementCost(const ReplicaProblem& problem, const ExpertLists& lists);

// Target numbers of replicas: at least problem.replicas, and enough that no
// replica has more than half of a worker's even share of all rows, if there are
// enough workers. Ignores memory. [E]
std::vector<int32_t> WantedReplicas(const ReplicaProblem& problem);

// Places from scratch, so that ImproveReplicas has nothing to do. If memory is
// short, hot experts get fewer replicas.
//
// Errors: InvalidArgument if a field is out of its range; ResourceExhausted if
// not even problem.replicas of each expert fit.
absl::StatusOr<ExpertLists> PlaceReplicas(const ReplicaProblem& problem);

// Adds missing replicas and changes nothing else, e.g. after the loss of a
// worker, whose list is then empty or removed. Experts without any replica come
// first, then those with few. Best effort within memory: it cannot fail.
//
// REQUIRES: PlaceReplicas accepts `problem`; `lists` are W lists of ascending
// experts in [0, E).
ExpertLists RepairReplicas(const ReplicaProblem& problem, ExpertLists lists);

struct ImproveOptions {
  // Maximum number of replicas to load.
  int32_t max_moves = std::numeric_limits<int32_t>::max();

  // Nothing is changed unless the cost falls by this share, 0 to 1, ...
  double min_gain = 0.1;

  // ... and the gain, over the time that loads are expected to stay the same,
  // exceeds the time to load.
  double horizon_seconds = 300.0;
  double seconds_per_move = 0.1;
};

// Moves replicas out of shared domains, at any cost, then to where they cost
// less, adds replicas of hot experts and drops surplus ones, if worthwhile.
// Calling again with the result changes nothing, except what max_moves has held
// back.
//
// REQUIRES: as RepairReplicas.
ExpertLists ImproveReplicas(const ReplicaProblem& problem,
                            const ExpertLists& lists,
                            const ImproveOptions& options);

// Number of experts whose replicas are in fewer distinct domains than
// problem.replicas, or than they have replicas.
//
// REQUIRES: as RepairReplicas.
int32_t CountSharing(const ReplicaProblem& problem, const ExpertLists& lists);

// Number of replicas in `to` that are not in `from`, which must be loaded.
int32_t CountMoves(const ExpertLists& from, const ExpertLists& to);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_REPLICA_PLACEMENT_H_
