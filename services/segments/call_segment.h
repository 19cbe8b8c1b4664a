// call_segment: the operator that replaces a segment in a router's program
// (role_split.h).

#ifndef SERVICES_SEGMENTS_CALL_SEGMENT_H_
#define SERVICES_SEGMENTS_CALL_SEGMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "services/graph/program.h"

namespace gshard {

// How an operand or result of call_segment is divided among the workers.
enum class Division : int64_t {
  kGroupSizes = 0,  // i32[E]: each worker gets its experts' entries
  kRows = 1,        // [R, ...]: the rows of its experts
  kWhole = 2,       // the same for all workers
};

// The node call_segment. Operand 0 is the layer's group_sizes; results are
// rows. Attributes: "segment" (name), "division" and "sent" (per operand),
// "operands" (names of the segment's inputs, joined by ';'), "replies" (their
// number) and "shape0", "shape1", ... (of the replies), with "type0", ... where
// not f32.
struct SegmentCall {
  std::string segment;
  std::vector<Division> division;  // per operand
  std::vector<bool> sent;          // per operand; others stay on the router
  std::vector<std::string> names;  // per operand: the segment's input
  int64_t num_replies = 0;
  std::vector<ValueType> reply_types;
};

// Reads a call_segment node.
SegmentCall GetSegmentCall(const Node& node);

// Registers call_segment. SplitRoles does so itself.
void RegisterShardingOps();

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_CALL_SEGMENT_H_
