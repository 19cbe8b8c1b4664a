// From one program to one per role: what routers run, and the segments that
// expert workers run.
//
// Everything computed from a parameter that is split over the axis "expert"
// happens where that parameter lives; the rest happens on the router. What
// lies between two crossings is a segment: the experts' forward products of
// one MoE layer, or their backward products. The router's program has a
// call_segment node in its place, whose operands and results are the two
// ragged all-to-alls of the layer.
//
// A segment is a program in which E is a symbol, so that it runs on any
// subset of the experts. The names of its inputs and outputs say what they are:
//
//   input   call/v<n>        comes with the call
//           saved/v<n>       was kept by an earlier segment of the same run
//   output  reply/v<n>       goes back to the caller
//           save/v<n>        is kept for later segments of the same run
//           gradient/<name>  the gradient of a parameter, stays with it
//
// A run is one pass through the router's program (one microbatch, one call of
// the encoder, ...). It ends, and what it saved is dropped, when every segment
// has been called.

#ifndef SERVICES_SHARDING_ROLE_SPLIT_H_
#define SERVICES_SHARDING_ROLE_SPLIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/graph/program.h"
#include "services/sharding/call_segment.h"

namespace gshard {

struct Segment {
  std::string name;  // "<program>/<n>", unique in the program
  Program program;
};

struct RolePrograms {
  Program router;
  std::vector<Segment> segments;  // in the order in which they are called
};

// Splits `program` by its annotations. A program without any comes back as
// the router's, unchanged.
//
// Errors: InvalidArgument for an annotation that is not split(0, expert) on a
// parameter or on rows; Unimplemented for an operator that mixes both sides in
// a way that is not known, naming it.
absl::StatusOr<RolePrograms> SplitRoles(const Program& program);

}  // namespace gshard

#endif  // SERVICES_SHARDING_ROLE_SPLIT_H_
