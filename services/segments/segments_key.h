// A hash of the segments that workers run. Coordinator and routers each derive
// a model's segments themselves; by the key they notice when their releases
// derive different ones.

#ifndef SERVICES_SEGMENTS_SEGMENTS_KEY_H_
#define SERVICES_SEGMENTS_SEGMENTS_KEY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "services/segments/role_split.h"

namespace gshard {

// Folds the segments, in order, into `key`; chain it for several programs,
// starting with 0. Not cryptographic.
uint64_t SegmentsKey(uint64_t key, const std::vector<Segment>& segments);

// Unimplemented if `told`, the coordinator's key, is not `derived`. A `told` of
// 0, from a release without the field, matches anything.
absl::Status CheckSegmentsKey(uint64_t told, uint64_t derived);

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_SEGMENTS_KEY_H_
