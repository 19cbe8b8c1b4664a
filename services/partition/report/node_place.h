// A node's place in the model: its nearest parameters, and forward or backward
// pass.
//
// A node's place is that of the parameters it reads, or else of its operands;
// if its result is an output "gradient/<name>", that parameter. Of several
// operands' places the last one counts. In the backward pass operands saved by
// the forward pass take precedence over incoming gradients, of which the first
// place counts. This is a label for humans: nothing depends on it.

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
  // Only gradient outputs need it.
  bool backward = false;
};

// By node.
std::vector<NodePlace> PlacesOf(const Program& program);

}  // namespace gshard

#endif  // SERVICES_PARTITION_REPORT_NODE_PLACE_H_
