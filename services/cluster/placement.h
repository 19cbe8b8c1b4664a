// Which expert worker holds which experts.
//
// Every MoE layer has the same placement: a worker that holds expert e holds it
// in all layers. Pure functions. E experts, W workers.

#ifndef SERVICES_CLUSTER_PLACEMENT_H_
#define SERVICES_CLUSTER_PLACEMENT_H_

#include <cstdint>
#include <vector>

namespace gshard {

inline constexpr int32_t kMaxPlacedExperts = 2048;
inline constexpr int32_t kMaxPlacedWorkers = 65536;

// [W] experts of each worker, ascending and distinct, so no worker has two
// replicas of one expert.
using ExpertLists = std::vector<std::vector<int32_t>>;

// Places experts 0 to E-1 in order: worker w holds a contiguous range, and the
// first E mod W workers hold one expert more than the others. E may be 0, W
// may exceed E.
ExpertLists Place(int32_t num_experts, int32_t num_workers);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_PLACEMENT_H_
