// FolderOwner: the owner of a checkpoint folder, as recorded in its owner.json.

#ifndef SERVICES_CHECKPOINT_FOLDER_OWNER_H_
#define SERVICES_CHECKPOINT_FOLDER_OWNER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

struct FolderOwner {
  std::string job;      // job name
  int64_t epoch = 0;    // number of owners so far, from 1
  std::string host;     // where it runs
  int64_t process = 0;  // process id
  std::string claim;    // 8 hexadecimal digits, unique to the owner
  // Renewals of its lease in an object store; nothing on a disk, or once
  // released.
  std::optional<int64_t> renewals = {};

  bool operator==(const FolderOwner&) const = default;
};

// "job 'demo' (epoch 3, process 4711 on host trainer-2)".
std::string Describe(const FolderOwner& owner);

// Sealed like a manifest. REQUIRES: the strings are UTF-8.
std::string FormatOwner(const FolderOwner& owner);

// Errors: DataLoss for anything but FormatOwner's output.
absl::StatusOr<FolderOwner> ParseOwner(absl::string_view text);

// The owner of the folder `root`; nothing if it was never claimed. Errors:
// DataLoss naming the file; those of storage.h.
absl::StatusOr<std::optional<FolderOwner>> ReadOwner(const std::string& root);

// ROOT/owner.json.
std::string OwnerPath(const std::string& root);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_FOLDER_OWNER_H_
