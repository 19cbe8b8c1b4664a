// CanonicalPath: the unique name of a path's target: absolute, without links,
// "." and "..". Two paths lead to one folder if these are equal; a path lies in
// a folder if IsWithin() says so of these.

#ifndef SERVICES_STORAGE_CANONICAL_PATH_H_
#define SERVICES_STORAGE_CANONICAL_PATH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

inline constexpr size_t kMaxPathBytes = 4096;

// Of what need not be there: its deepest ancestor that is decides, and the rest
// is taken as it is written. A relative path begins in the working directory.
// Of an object store, whose names lead nowhere else, it is the path's one
// spelling (object_path.h).
//
// The result describes the disk at this moment. Anyone with write access to a
// folder on the path can put a link there afterwards: use the result, never the
// original path again, and decide separately whom to trust with write access.
//
// Errors: InvalidArgument if `path` is empty, longer than kMaxPathBytes or has
// a NUL; NotFound for a link to nothing, which would otherwise decide only
// later where the path leads; those of file.h and ParseObjectPath.
absl::StatusOr<std::string> CanonicalPath(absl::string_view path);

// `path` is `folder`, or lies in it; both canonical.
bool IsWithin(absl::string_view path, absl::string_view folder);

}  // namespace gshard

#endif  // SERVICES_STORAGE_CANONICAL_PATH_H_
