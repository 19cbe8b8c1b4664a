// Sharding annotations: how a tensor's dimensions map to axes of processes
// (GShard, arXiv 2006.16668, section 3.2). They are identity on values.

#ifndef SERVICES_SHARDING_ANNOTATION_H_
#define SERVICES_SHARDING_ANNOTATION_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/graph/builder.h"

namespace gshard {

// Dimension `dim` is cut into parts along the axis `axis`.
struct SplitAnnotation {
  int dim = 0;
  std::string axis;
};

// Annotates `value` and returns it. An error of the builder if the dimension
// is out of range, naming the value's type and the annotation.
ValueId Split(Builder& builder, ValueId value, int dim, absl::string_view axis);

// The annotation of a value, or nullopt if it has none. Errors: InvalidArgument
// for text that is not an annotation.
absl::StatusOr<std::optional<SplitAnnotation>> GetSplit(const Program& program,
                                                        ValueId value);

}  // namespace gshard

#endif  // SERVICES_SHARDING_ANNOTATION_H_
