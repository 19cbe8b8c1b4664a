// CanonicalPath: the unique name of a path's target: absolute, without links,
// "." and "..". Two paths lead to one folder if these are equal; a path is in a
// folder if IsWithin() says so for these.

#ifndef SERVICES_STORAGE_CANONICAL_PATH_H_
#define SERVICES_STORAGE_CANONICAL_PATH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

inline constexpr size_t kMaxPathBytes = 4096;

// The target need not exist: its deepest existing ancestor is resolved, and the
// rest is taken literally. A relative path begins in the working directory. For
// an object store, which has no links, it is the path's canonical spelling
// (object_path.h).
//
// The result describes the disk at this moment. Anyone with write access to a
// folder on the path can put a link there afterwards: use the result, never the
// original path again, and decide separately whom to trust with write access.
//
// Errors: InvalidArgument if `path` is empty, longer than kMaxPathBytes or has
// a NUL; NotFound for a dangling link, whose target could be decided later;
// those of file.h and ParseObjectPath.
absl::StatusOr<std::string> CanonicalPath(absl::string_view path);

// Whether `path` is `folder` or inside it. REQUIRES: both are canonical.
bool IsWithin(absl::string_view path, absl::string_view folder);

}  // namespace gshard

#endif  // SERVICES_STORAGE_CANONICAL_PATH_H_
