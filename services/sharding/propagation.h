// Propagation: derives the sharding of every value from a few annotations
// (GShard, arXiv 2006.16668, section 3.2; priorities as in XLA and Shardy).
//
// Facts spread from annotated values along the factors of each operator's rule
// (rule.h), forwards and backwards, to a fixed point, in rounds in which all
// nodes see the same state, so the result does not depend on the order of
// nodes. First through operators that move data or work elementwise, then
// through all. If two facts about a value conflict in a round, the more
// important one wins; an accepted fact is only ever refined. In order of
// importance:
//   1. pass-through operators before others
//   2. facts that come from larger tensors
//   3. facts that split more ways
//   4. the lower dimension, then the axis that stands first in the mesh
// Annotations are never changed.

#ifndef SERVICES_SHARDING_PROPAGATION_H_
#define SERVICES_SHARDING_PROPAGATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/graph/program.h"
#include "services/sharding/annotation.h"
#include "services/sharding/device_mesh.h"
#include "services/sharding/rule.h"
#include "services/sharding/sharding.h"

namespace gshard {

// The origin of a value's sharding.
struct Origin {
  enum Kind { kNothing, kAnnotation, kPropagated, kManual } kind = kNothing;
  ValueId from = kNoValue;  // the neighbour
  int32_t through = -1;     // the node between them
};

struct Shardings {
  std::vector<Sharding> of;  // by value; never partial
  std::vector<Origin> origins;
  // For values annotated with Shard: see Annotation.
  std::vector<std::vector<int64_t>> device_orders;
  std::vector<OpRule> rules;  // by node

  // Whether a value belongs to a manual region (manual.h): each device has its
  // own, of the shape in the program.
  bool IsManual(ValueId value) const {
    return origins[value].kind == Origin::kManual;
  }
};

// Errors: those of GetAnnotation.
absl::StatusOr<Shardings> Propagate(const Program& program,
                                    const DeviceMesh& mesh);

// One line per split value: its name, type, sharding and origin.
//   v12 f32[T, 512] [router, -] from v9 through reshape
std::string Explain(const Program& program, const DeviceMesh& mesh,
                    const Shardings& shardings);

}  // namespace gshard

#endif  // SERVICES_SHARDING_PROPAGATION_H_
