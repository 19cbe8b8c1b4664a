// A key of what workers run: the same where the segments are, to the letter.
// Coordinator and routers derive the segments of a model each for itself; by
// the key they notice when releases of different programs derive other ones.

#ifndef SERVICES_SEGMENTS_SEGMENTS_KEY_H_
#define SERVICES_SEGMENTS_SEGMENTS_KEY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "services/segments/role_split.h"

namespace gshard {

// Folds the segments, in their order, into `key`; chain it for several
// programs, beginning with 0. Nothing that tells forgeries.
uint64_t SegmentsKey(uint64_t key, const std::vector<Segment>& segments);

// Unimplemented if `told`, the coordinator's key, is not `derived`. 0 is
// that of a coordinator that does not say.
absl::Status CheckSegmentsKey(uint64_t told, uint64_t derived);

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_SEGMENTS_KEY_H_
