// Placement: which expert worker holds which experts.
//
// Every MoE layer has the same placement: a worker that holds expert e holds it
// in all layers. Pure functions, no clock, no threads. E experts, W workers.

#ifndef SERVICES_CLUSTER_PLACEMENT_H_
#define SERVICES_CLUSTER_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gshard {

inline constexpr int32_t kMaxPlacedExperts = 2048;
inline constexpr int32_t kMaxPlacedWorkers = 65536;

struct Placement {
  // Increases with every change, so that a stale copy is recognized.
  int64_t version = 0;

  // [W] lists of experts, each ascending; empty for a worker that holds none. A
  // worker is identified by its index.
  std::vector<std::vector<int32_t>> experts_of_worker;

  int32_t num_workers() const {
    return static_cast<int32_t>(experts_of_worker.size());
  }

  bool operator==(const Placement&) const = default;
};

// Places experts 0 to E-1 in order: worker w holds a contiguous range, and the
// first E mod W workers hold one expert more than the others. E may be 0, W
// may exceed E.
//
// Errors: InvalidArgument if E is not 0 to 2048, W not 1 to 65536, or `version`
// negative.
absl::StatusOr<Placement> Place(int32_t num_experts, int32_t num_workers,
                                int64_t version);

// Validates an external placement: every expert 0 to E-1 is held exactly once,
// each list is ascending, sizes are those that Place requires.
//
// Errors: InvalidArgument, naming the expert or worker at fault.
absl::Status ValidatePlacement(const Placement& placement, int32_t num_experts);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_PLACEMENT_H_
