// A worker holds the experts of a served model in bundles, each loaded and
// released as a whole, so that a change of its experts loads only what is new.
// Pure.

#ifndef SERVICES_CLUSTER_PLACEMENT_BUNDLES_H_
#define SERVICES_CLUSTER_PLACEMENT_BUNDLES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace gshard {

// A call makes one message of each bundle: a worker has no more than this.
inline constexpr size_t kMaxBundles = 3;

struct BundleChange {
  std::vector<bool> keep;     // as `held`
  std::vector<int32_t> load;  // the experts of a new bundle; may be empty
};

// How a worker that holds the bundles `held`, with ascending experts, comes to
// hold the experts of `wanted`, ascending, once each. Bundles with unwanted
// experts are released, as are those whose experts other bundles have; if too
// many would remain, all are replaced by a single new bundle.
BundleChange PlanBundles(absl::Span<const std::vector<int32_t>> held,
                         absl::Span<const int32_t> wanted);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_PLACEMENT_BUNDLES_H_
