#include "client/model_files.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/storage/canonical_path.h"
#include "services/storage/object_path.h"
#include "services/storage/storage.h"

namespace gshard {

absl::StatusOr<std::string> FindCheckpoint(const std::string& path) {
  const std::string absolute = AbsolutePath(path);
  if (IsObjectPath(absolute)) {
    ASSIGN_OR_RETURN(const std::string folder, CanonicalPath(absolute));
    ASSIGN_OR_RETURN(const bool is_checkpoint,
                     Storage::Of(folder).IsCommitted(folder, kManifestFile));
    if (is_checkpoint) return folder;
    return LatestCheckpoint(folder);
  }
  std::error_code error;
  if (!std::filesystem::is_directory(absolute, error)) {
    return absl::NotFoundError(absl::StrCat(absolute, ": no such directory"));
  }
  if (std::filesystem::exists(absolute + "/manifest.json", error)) {
    return absolute;
  }
  return LatestCheckpoint(absolute);
}

absl::StatusOr<NamedCheckpoint> ParseNamedCheckpoint(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected NAME=CHECKPOINT, got \"", text, "\""));
  }
  return NamedCheckpoint{text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace gshard
