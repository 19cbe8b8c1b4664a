// ObjectPath: the name of what is in an object store, as flags, jobs and
// manifests spell it: "s3://bucket/key". Such a path stands wherever that of a
// folder or file may.

#ifndef SERVICES_STORAGE_OBJECT_PATH_H_
#define SERVICES_STORAGE_OBJECT_PATH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace gshard {

// Whether `path` is to be one, well formed or not.
inline bool IsObjectPath(absl::string_view path) {
  return absl::StartsWith(path, "s3://");
}

struct ObjectPath {
  std::string bucket;
  std::string key;  // empty: of the bucket; no slash at either end

  std::string Text() const;  // the canonical spelling
};

// A slash at the end counts for nothing. Errors: InvalidArgument unless the
// bucket is 3 to 63 of a-z, 0-9, '.' and '-', and the key at most 1024 bytes of
// UTF-8 without control characters, whose parts between slashes are not empty,
// "." or "..".
absl::StatusOr<ObjectPath> ParseObjectPath(absl::string_view path);

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_PATH_H_
