// Sharding annotations: how a tensor's dimensions map to devices (GShard, arXiv
// 2006.16668, section 3.2). They do not change values, and are the only thing
// that a model says about distribution.
//
//   Split(b, inputs, 0, "router");
//   Replicate(b, gate_weights);
//   Split(b, dispatched_rows, 0, "expert");
//
// An annotated value keeps its annotation whatever propagation finds:
// dimensions that it does not split stay whole. Its gradient carries the same
// annotation. Axes are those of the DeviceMesh for which the program is
// partitioned later.

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

// Each function annotates `value` and returns it. Errors, via the builder: a
// dimension out of range or split twice, an axis used twice, a device
// assignment of another rank; they name the value's type and the annotation.

// Splits dimension `dim` along the axis. Several calls split several
// dimensions, or one along several axes, the major one first.
ValueId Split(Builder& builder, ValueId value, int dim, absl::string_view axis);

// Splits dimension `dim` in `parts` parts, along the first axis of that size.
ValueId Split(Builder& builder, ValueId value, int dim, int64_t parts);

// The same on every device.
ValueId Replicate(Builder& builder, ValueId value);

// Splits dimension d in dims[d] parts; the tile with index i, the last
// dimension fastest, is on device devices[i]. Each device occurs once.
struct DeviceAssignment {
  std::vector<int64_t> dims;
  std::vector<int64_t> devices;
};
ValueId Shard(Builder& builder, ValueId value,
              const DeviceAssignment& assignment);

// An annotation, resolved for a mesh.
struct Annotation {
  Sharding sharding;
  // For Shard: the device that has the tile of the mesh's i-th device. Empty if
  // each has its own.
  std::vector<int64_t> device_order;
};

// The annotation of a value, or nullopt if it has none.
//
// Errors: InvalidArgument for malformed text, for a number of parts that no
// axis has, and for an assignment that does not name each device once or whose
// parts do not match axes of the mesh; NotFound for an axis that the mesh does
// not have. They name the value's type and the annotation.
absl::StatusOr<std::optional<Annotation>> GetAnnotation(const Program& program,
                                                        ValueId value,
                                                        const DeviceMesh& mesh);

}  // namespace gshard

#endif  // SERVICES_SHARDING_ANNOTATION_H_
