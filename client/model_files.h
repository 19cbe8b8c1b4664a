// Checkpoints named on the command line.

#ifndef CLIENT_MODEL_FILES_H_
#define CLIENT_MODEL_FILES_H_

#include <string>

#include "absl/status/statusor.h"

namespace gshard {

// The absolute path of the checkpoint that `path` refers to: itself, or the
// newest checkpoint in it.
//
// Errors: NotFound if there is neither; DataLoss if none can be read;
// PermissionDenied if the caller may not look there, and others of FileError.
absl::StatusOr<std::string> FindCheckpoint(const std::string& path);

// "NAME=CHECKPOINT".
struct NamedCheckpoint {
  std::string name;
  std::string path;
};

// Errors: InvalidArgument if `text` is not of that form.
absl::StatusOr<NamedCheckpoint> ParseNamedCheckpoint(const std::string& text);

}  // namespace gshard

#endif  // CLIENT_MODEL_FILES_H_
