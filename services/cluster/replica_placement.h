// Where the replicas of a served model's experts lie: which workers, and how
// many replicas an expert has. Every MoE layer is placed alike.
//
// Replicas of an expert are kept in different failure domains, at the widest
// level that can be, whatever that costs; see failure_domains.h.
//
// The cost of a placement is the time that the slowest worker takes for its
// share of a second's rows, where an expert's rows are shared evenly by its
// replicas. Pure functions: same arguments, same answer. E experts, W workers.

#ifndef SERVICES_CLUSTER_REPLICA_PLACEMENT_H_
#define SERVICES_CLUSTER_REPLICA_PLACEMENT_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gshard {

inline constexpr int32_t kMaxReplicas = 16;

// [W] experts of each worker, ascending. An expert is at most once in a list,
// so two replicas of it are never on one worker.
using ExpertLists = std::vector<std::vector<int32_t>>;

struct ReplicaProblem {
  int32_t num_experts = 0;  // 0 to kMaxPlacedExperts

  // Replicas that each expert should have, 1 to kMaxReplicas; W if there are
  // fewer workers.
  int32_t replicas = 1;

  // [E] rows per second, or any multiple of it; finite, at least 0. Empty or
  // all 0 if not known: experts then count alike.
  std::vector<double> load;

  struct Worker {
    double rows_per_second = 1.0;  // relative to the others; positive
    int32_t max_experts = std::numeric_limits<int32_t>::max();  // of memory
    std::string failure_domain = {};

    bool operator==(const Worker&) const = default;
  };
  std::vector<Worker> workers;  // not empty
};

// The cost above; 0 without experts. An expert without a replica costs nothing.
double PlacementCost(const ReplicaProblem& problem, const ExpertLists& lists);

// Replicas that experts should have: at least problem.replicas, and so many
// more that no replica has more than half of a worker's even share of all rows,
// as far as there are workers. Memory is not looked at. [E]
std::vector<int32_t> WantedReplicas(const ReplicaProblem& problem);

// Places from scratch, leaving nothing for ImproveReplicas to do. If memory is
// short, hot experts get fewer replicas.
//
// Errors: InvalidArgument if a field is out of its range; ResourceExhausted if
// not even problem.replicas of each expert fit.
absl::StatusOr<ExpertLists> PlaceReplicas(const ReplicaProblem& problem);

// Adds missing replicas and changes nothing else, e.g. after the loss of a
// worker, whose list is then empty or removed. Experts without any replica come
// first, then those with few. Best effort within memory: it cannot fail.
//
// REQUIRES: CheckReplicas(problem, lists) is OK.
ExpertLists RepairReplicas(const ReplicaProblem& problem, ExpertLists lists);

struct ImproveOptions {
  // Replicas that may be loaded at most.
  int32_t max_moves = std::numeric_limits<int32_t>::max();

  // Nothing is changed unless the cost falls by this share, 0 to 1, ...
  double min_gain = 0.1;

  // ... and the share, over the time that loads are expected to stay as they
  // are, is worth more than the time that loading takes.
  double horizon_seconds = 300.0;
  double seconds_per_move = 0.1;
};

// Moves replicas out of domains that they share, whatever that is worth, then
// to where they cost less, adds replicas of hot experts and drops those that
// are not wanted any more, if that is worth it. Calling again with the result
// changes nothing, but for what max_moves has held back.
//
// REQUIRES: as RepairReplicas.
ExpertLists ImproveReplicas(const ReplicaProblem& problem,
                            const ExpertLists& lists,
                            const ImproveOptions& options);

// Experts that the loss of fewer domains than their replicas takes away: with
// fewer of them than problem.replicas, or than they have replicas.
//
// REQUIRES: as RepairReplicas.
int32_t CountSharing(const ReplicaProblem& problem, const ExpertLists& lists);

// Replicas in `to` that are not in `from`: what has to be loaded.
int32_t CountMoves(const ExpertLists& from, const ExpertLists& to);

// Errors: InvalidArgument if a field of `problem` is out of its range, or
// `lists` are not W lists of ascending experts in [0, E), naming the worker.
absl::Status CheckReplicas(const ReplicaProblem& problem,
                           const ExpertLists& lists);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_REPLICA_PLACEMENT_H_
