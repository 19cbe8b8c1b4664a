// A worker holds the experts of a served model in bundles, each loaded and
// released as a whole, so that a change loads only new experts. Pure functions.

#ifndef SERVICES_CLUSTER_PLACEMENT_BUNDLES_H_
#define SERVICES_CLUSTER_PLACEMENT_BUNDLES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace gshard {

// Maximum number of bundles per worker: a call sends one message per bundle.
inline constexpr size_t kMaxBundles = 3;

struct BundleChange {
  std::vector<bool> keep;     // per bundle of `held`
  std::vector<int32_t> load;  // the experts of a new bundle; may be empty
};

// Plans how a worker with the bundles `held`, each ascending, comes to hold
// exactly the experts of `wanted`, ascending. Bundles with unwanted experts are
// released, as are those whose experts other bundles have; if too many would
// remain, all are replaced by a single new bundle.
BundleChange PlanBundles(absl::Span<const std::vector<int32_t>> held,
                         absl::Span<const int32_t> wanted);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_PLACEMENT_BUNDLES_H_
