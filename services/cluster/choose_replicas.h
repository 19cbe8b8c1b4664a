// Chooses the replica of each expert for a call. Pure functions.

#ifndef SERVICES_CLUSTER_CHOOSE_REPLICAS_H_
#define SERVICES_CLUSTER_CHOOSE_REPLICAS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "services/cluster/worker_health.h"

namespace gshard {

// A router's view of a process that holds some of the experts.
struct ReplicaHolder {
  absl::Span<const int32_t> experts;  // ascending

  // Rows that the router has sent there, not yet answered.
  int64_t outstanding_rows = 0;

  // A slow holder is chosen only for experts without a good one, a failed one
  // never.
  WorkerHealth::State state = WorkerHealth::State::kGood;
};

// Cost of a message, in rows: a small call goes to few holders.
inline constexpr int64_t kRowsPerCall = 8;

// For each expert, the index of the holder that computes its rows; -1 for an
// expert without rows, or without an eligible holder.
//
// Greedy: experts are assigned one by one, those with one holder first, then by
// decreasing number of rows, each to the holder with the fewest outstanding
// rows, including this call's; ties go to the lowest index.
std::vector<int32_t> ChooseReplicas(absl::Span<const int32_t> rows_of_expert,
                                    absl::Span<const ReplicaHolder> holders);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_CHOOSE_REPLICAS_H_
