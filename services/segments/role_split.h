// From one program to one per role: what routers run, and the segments that
// expert workers run.
//
// The program is partitioned (partitioner.h) for the mesh
//
//   {"router", 1, "router"}, {"expert", kElastic, "worker"},
//   {"model", slices, "worker"}
//
// and parted where values cross from one role to the other. What is split over
// the axis "expert" is computed where its experts live, the rest on the
// router. What lies between two crossings is a segment: the experts' forward
// products of one MoE layer, or their backward products. The router's program
// has a call_segment node in its place, whose operands and results are the two
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
//
// With several slices an expert lies on as many workers, each with a part of
// what is split over the axis "model" (its inner width). All get the same rows;
// replies that are sums over that width are added by the caller.

#ifndef SERVICES_SEGMENTS_ROLE_SPLIT_H_
#define SERVICES_SEGMENTS_ROLE_SPLIT_H_

#include <cstdint>
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

// Splits `program` by its annotations, which may name the three axes. A program
// of which nothing is split over experts comes back as the router's, unchanged.
//
// Errors: those of Partition; InvalidArgument for a parameter that is split in
// another way than over experts in its first dimension, and over slices in
// others that divide; Unimplemented for an operator that mixes both sides in a
// way that is not known, and one for which workers would have to talk to each
// other, naming it.
absl::StatusOr<RolePrograms> SplitRoles(const Program& program,
                                        int64_t slices = 1);

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_ROLE_SPLIT_H_
