// A worker holds the experts of a served model in parts, each loaded and
// released as a whole, so that a change of its experts loads only what is new.
// Pure.

#ifndef SERVICES_CLUSTER_PLACEMENT_PARTS_H_
#define SERVICES_CLUSTER_PLACEMENT_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace gshard {

// A call makes one message of each part: a worker has no more than this.
inline constexpr size_t kMaxParts = 3;

struct PartChange {
  std::vector<bool> keep;     // as `held`
  std::vector<int32_t> load;  // the experts of a new part; may be empty
};

// How a worker comes from the parts that it holds, whose experts are ascending,
// to hold the experts of `wanted`, ascending, once each. Parts with other
// experts go, as do those whose experts other parts have; if too many would be
// left, all go and what is wanted becomes one part.
PartChange PlanParts(absl::Span<const std::vector<int32_t>> held,
                     absl::Span<const int32_t> wanted);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_PLACEMENT_PARTS_H_
