// SegmentCalls: the contents of the call_segment nodes of a router's programs,
// read once when a model is loaded.

#ifndef SERVICES_EXCHANGE_SEGMENT_CALLS_H_
#define SERVICES_EXCHANGE_SEGMENT_CALLS_H_

#include <initializer_list>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "services/segments/call_segment.h"

namespace gshard {

using SegmentCalls = absl::flat_hash_map<std::string, SegmentCall>;  // by name

// Errors: Unimplemented if the width of a reply is not known statically;
// Internal if two nodes call the same segment.
absl::StatusOr<SegmentCalls> ReadSegmentCalls(
    std::initializer_list<const Program*> programs);

// The dims of reply `r` with `rows` rows. REQUIRES: `call` is from
// ReadSegmentCalls.
Dims ReplyDims(const SegmentCall& call, int64_t r, int64_t rows);

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_SEGMENT_CALLS_H_
