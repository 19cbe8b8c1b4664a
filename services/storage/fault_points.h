// A hook before every change that a writer makes to a disk: the points at which
// a process can die, a disk can be full or a device can fail.
//
// The owner of a checkpoint folder passes its claim, which refuses all changes
// once another process has the folder (folder_claim.h); others pass null. A
// test passes an object that counts and records the changes and makes one of
// them fail, or ends the process there
// (tests/services/checkpoint/faults_test.cc).

#ifndef SERVICES_STORAGE_FAULT_POINTS_H_
#define SERVICES_STORAGE_FAULT_POINTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gshard {

struct DiskChange {
  enum class Kind {
    kMakeDirectory,  // path
    kCreate,         // path, a new or emptied file
    kWrite,          // path: bytes at offset
    kSync,           // path, a file
    kRename,         // path to target
    kSyncDirectory,  // path
    kRemove,         // path, a file or an empty directory
  };

  Kind kind;
  std::string path;
  std::string target = "";
  uint64_t offset = 0;
  absl::string_view bytes = "";
};

class FaultPoints {
 public:
  virtual ~FaultPoints() = default;

  // Called before `change` is made. Any status but OK is returned as the
  // change's outcome, and the change is not made.
  virtual absl::Status Reach(const DiskChange& change) = 0;
};

}  // namespace gshard

#endif  // SERVICES_STORAGE_FAULT_POINTS_H_
