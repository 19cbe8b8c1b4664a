// Where in a model a node stands: next to which parameters, on the way forward
// or back.
//
// A node stands at the parameters that it reads, or else where its operands
// come from; one whose result is an output "gradient/<name>" stands at that
// parameter. Operands from several places decide for the last of them. On the
// way back those that the way forward has left come before gradients that
// arrive, and of these the first place counts. This is a label for people:
// nothing depends on it.

#ifndef SERVICES_PARTITION_REPORT_NODE_PLACE_H_
#define SERVICES_PARTITION_REPORT_NODE_PLACE_H_

#include <string>
#include <vector>

#include "services/graph/program.h"

namespace gshard {

// Outputs of this prefix are gradients of the parameter whose name follows.
inline constexpr char kGradientPrefix[] = "gradient/";

struct NodePlace {
  // A parameter's name up to its last point, "encoder.0.moe"; the whole name
  // of a gradient, "encoder.0.moe.wi"; "" before any parameter.
  std::string name;
  // No output but gradients needs it.
  bool backward = false;
};

// By node.
std::vector<NodePlace> PlacesOf(const Program& program);

}  // namespace gshard

#endif  // SERVICES_PARTITION_REPORT_NODE_PLACE_H_
