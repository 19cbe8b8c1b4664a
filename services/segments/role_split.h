// Splits one program into one per role: the routers' program, and the segments
// that expert workers run.
//
// The program is partitioned (partitioner.h) for the mesh
//
//   {"router", 1, "router"}, {"expert", kElastic, "worker"}
//
// and split where values cross between the roles. What is split over the axis
// "expert" is computed where its experts are, the rest on the router. The nodes
// between two crossings form a segment: the experts' forward products of one
// MoE layer, or their backward products. In the router's program a call_segment
// node replaces it, whose operands and results are the two ragged all-to-alls
// of the layer.
//
// A segment is a program in which E is a symbol, so that it runs on any subset
// of the experts. The names of its inputs and outputs tell their purpose:
//
//   input   call/v<n>        comes with the call
//           saved/v<n>       was kept by an earlier segment of the same run
//   output  reply/v<n>       goes back to the caller
//           save/v<n>        is kept for later segments of the same run
//           gradient/<name>  the gradient of a parameter, stays with it
//
// A run is one execution of the router's program (one microbatch, one encoder
// call, ...). It ends, and its saved values are dropped, when every segment has
// been called.

#ifndef SERVICES_SEGMENTS_ROLE_SPLIT_H_
#define SERVICES_SEGMENTS_ROLE_SPLIT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/graph/program.h"
#include "services/segments/call_segment.h"

namespace gshard {

struct Segment {
  std::string name;  // "<program>/<n>", unique in the program
  Program program;
};

struct RolePrograms {
  Program router;
  std::vector<Segment> segments;  // in the order in which they are called
};

// Splits `program` by its annotations, which may name the two axes. A program
// with nothing split over experts is returned unchanged as the router's.
//
// Errors: those of Partition; InvalidArgument for a parameter that is split
// over experts in another dimension than its first; Unimplemented, with its
// name, for an operator that mixes both sides in an
// unsupported way, or one for which workers would have to communicate.
absl::StatusOr<RolePrograms> SplitRoles(const Program& program);

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_ROLE_SPLIT_H_
