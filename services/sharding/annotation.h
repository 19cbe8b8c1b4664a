// Sharding annotations: how a tensor's dimensions map to devices (GShard,
// arXiv 2006.16668, section 3.2). They are identity on values, and the only
// thing that a model says about distribution.
//
//   Split(b, inputs, 0, "router");
//   Replicate(b, gate_weights);
//   Split(b, dispatched_rows, 0, "expert");
//
// An annotated value keeps its annotation whatever else the partitioner finds:
// dimensions that it does not split stay whole. Its gradient carries the same
// annotation. Axes are those of the DeviceMesh that the program is later
// partitioned for.

#ifndef SERVICES_SHARDING_ANNOTATION_H_
#define SERVICES_SHARDING_ANNOTATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/graph/builder.h"
#include "services/sharding/sharding.h"

namespace gshard {

// Each function annotates `value` and returns it. Errors, of the builder: a
// dimension out of range or split twice, an axis used twice, a device
// assignment of another rank; they name the value's type and the annotation.

// Dimension `dim` is cut along the axis. Several calls split several
// dimensions, or one along several axes, the major one first.
ValueId Split(Builder& builder, ValueId value, int dim, absl::string_view axis);

// Dimension `dim` is cut in `parts` parts, along the first axis of that size.
ValueId Split(Builder& builder, ValueId value, int dim, int64_t parts);

// The same on every device.
ValueId Replicate(Builder& builder, ValueId value);

// Dimension d is cut in dims[d] parts; the tile with index i, the last
// dimension fastest, is on device devices[i]. All devices stand in it once.
struct DeviceAssignment {
  std::vector<int64_t> dims;
  std::vector<int64_t> devices;
};
ValueId Shard(Builder& builder, ValueId value,
              const DeviceAssignment& assignment);

// An annotation, read for a mesh.
struct Annotation {
  Sharding sharding;
  // Of Shard: where the tile of the i-th device of the mesh is. Empty if it is
  // on that device.
  std::vector<int64_t> device_order;
};

// The annotation of a value, or nullopt if it has none.
//
// Errors: InvalidArgument for text that is no annotation, for a number of
// parts that no axis has, and for an assignment that does not name each device
// once or whose parts are no axes of the mesh; NotFound for an axis that the
// mesh does not have. They name the value's type and the annotation.
absl::StatusOr<std::optional<Annotation>> GetAnnotation(const Program& program,
                                                        ValueId value,
                                                        const DeviceMesh& mesh);

}  // namespace gshard

#endif  // SERVICES_SHARDING_ANNOTATION_H_
