// ObjectPath: a path in an object store, as spelled in flags, jobs and
// manifests: "s3://bucket/key". Allowed wherever a folder or file is.

#ifndef SERVICES_STORAGE_OBJECT_PATH_H_
#define SERVICES_STORAGE_OBJECT_PATH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace gshard {

// Whether `path` is meant as one, well formed or not.
inline bool IsObjectPath(absl::string_view path) {
  return absl::StartsWith(path, "s3://");
}

// Whether `path` begins as a URL, as "gs://bucket/key" does, of which only
// s3:// is an object's. As a path of a disk it would be one below the current
// directory.
inline bool IsUrl(absl::string_view path) {
  const size_t slash = path.find('/');
  return slash > 1 && slash != path.npos && path[slash - 1] == ':' &&
         absl::StartsWith(path.substr(slash), "//");
}

struct ObjectPath {
  std::string bucket;
  std::string key;  // empty: the bucket; no slash at either end

  std::string Text() const;  // the canonical spelling
};

// A trailing slash is ignored. Errors: InvalidArgument unless the bucket is 3
// to 63 of a-z, 0-9, '.' and '-', and the key at most 1024 bytes of UTF-8
// without control characters, whose parts between slashes are not empty, "." or
// "..".
absl::StatusOr<ObjectPath> ParseObjectPath(absl::string_view path);

}  // namespace gshard

#endif  // SERVICES_STORAGE_OBJECT_PATH_H_
