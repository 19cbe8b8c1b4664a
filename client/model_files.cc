#include "client/model_files.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/config/process_options.h"
#include "services/storage/canonical_path.h"
#include "services/storage/file.h"
#include "services/storage/object_path.h"

namespace gshard {

void AddStoreFlags(Flags& flags, ObjectStoreOptions* store, bool has_insecure) {
  AddObjectStoreFlags(flags, &store->endpoint, &store->region);
  if (has_insecure) return;
  flags.Bool("insecure", &store->insecure,
             "allow an object store without TLS beyond this machine");
}

absl::StatusOr<std::string> FindCheckpoint(const std::string& path, bool best) {
  std::string folder = AbsolutePath(path);
  std::error_code error;
  if (IsUrl(folder)) {
    ASSIGN_OR_RETURN(folder, CanonicalPath(folder));
  } else if (!std::filesystem::is_directory(folder, error)) {
    // Such as a folder that only the user of the services may look into.
    if (error && error != std::errc::no_such_file_or_directory) {
      return FileError(error.value(), "look at", folder);
    }
    if (!error) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder,
          ": expected the folder of a checkpoint, or of several, got a file"));
    }
    return absl::NotFoundError(absl::StrCat(folder, ": no such directory"));
  }
  return best ? BestCheckpoint(folder) : CheckpointAt(folder);
}

}  // namespace gshard
