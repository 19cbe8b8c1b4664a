#include "services/storage/canonical_path.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"
#include "services/storage/file.h"
#include "services/storage/object_path.h"

namespace gshard {

namespace fs = std::filesystem;

absl::StatusOr<std::string> CanonicalPath(absl::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes ||
      path.find('\0') != path.npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a path of 1 to ", kMaxPathBytes,
                     " bytes without NUL, got ", path.size(), " bytes"));
  }
  if (IsUrl(path)) {
    ASSIGN_OR_RETURN(const ObjectPath object, ParseObjectPath(path));
    return object.Text();
  }
  std::error_code error;
  fs::path there = fs::absolute(std::string(path), error);
  fs::path rest;
  while (!error &&
         fs::symlink_status(there, error).type() == fs::file_type::not_found) {
    error.clear();
    rest = there.filename() / rest;
    there = there.parent_path();
  }
  if (!error) there = fs::canonical(there, error);
  if (error) return FileError(error.value(), "resolve", path);
  fs::path whole = (there / rest).lexically_normal();
  // A trailing slash.
  if (!whole.has_filename() && whole != whole.root_path()) {
    whole = whole.parent_path();
  }
  // ".." after missing names leads back to others, which may exist.
  const bool climbs = std::find(rest.begin(), rest.end(), "..") != rest.end();
  return climbs ? CanonicalPath(whole.string()) : whole.string();
}

bool IsWithin(absl::string_view path, absl::string_view folder) {
  if (!absl::ConsumePrefix(&path, folder)) return false;
  return path.empty() || path.front() == '/' || folder == "/";
}

}  // namespace gshard
