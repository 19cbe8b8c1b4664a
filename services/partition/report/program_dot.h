// Draws a partitioned program, or a part of it, as text for Graphviz's `dot`.
//
// Nodes are filled in the colour of their role; collectives and crossings are
// hexagons, parameters and inputs ellipses, all else boxes. An edge is labelled
// with its value's type on the device and, if it is a form of a value of the
// whole program, with its sharding. Sources outside the part are dashed; a
// result, which nothing in the part reads, ends in a point.

#ifndef SERVICES_PARTITION_REPORT_PROGRAM_DOT_H_
#define SERVICES_PARTITION_REPORT_PROGRAM_DOT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "services/partition/partitioner.h"
#include "services/sharding/device_mesh.h"

namespace gshard {

// Nodes `first` to `last` of a program, inclusive.
struct NodeRange {
  int32_t first = 0;
  int32_t last = 0;
};

// From the first top2_gating to the first combine after it.
//
// Errors: NotFound for a program without MoE layers.
absl::StatusOr<NodeRange> FirstMoeLayer(const Program& program);

// REQUIRES: the range lies in the program.
std::string ProgramToDot(const Partitioned& partitioned, const DeviceMesh& mesh,
                         const NodeRange& range);

}  // namespace gshard

#endif  // SERVICES_PARTITION_REPORT_PROGRAM_DOT_H_
