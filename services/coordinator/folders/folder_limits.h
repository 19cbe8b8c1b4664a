// FolderLimits: the canonical folders of callers for threads that must not wait
// for disks.

#ifndef SERVICES_COORDINATOR_FOLDERS_FOLDER_LIMITS_H_
#define SERVICES_COORDINATOR_FOLDERS_FOLDER_LIMITS_H_

#include <chrono>
#include <map>
#include <string>

#include "services/base/mutex.h"
#include "services/base/task_queue.h"
#include "services/coordinator/folders/path_rights.h"
#include "services/rpc/security/caller.h"

namespace gshard {

// Thread-safe.
class FolderLimits {
 public:
  explicit FolderLimits(PathResolver resolve = CanonicalPath)
      : resolve_(std::move(resolve)) {}

  // As ResolveFolders(), on a thread that may block. If that does not finish
  // within a moment, returns the last result, or the folder unresolved; so do
  // all calls until the hung disk responds.
  Caller Resolve(Caller caller);

  // Waits for the folder being resolved.
  void Stop() { queue_.Stop(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Folder {
    std::string found;     // last result; empty: none yet
    bool pending = false;  // being resolved, since
    Clock::time_point since;
  };

  std::string Resolve(const std::string& folder);

  const PathResolver resolve_;
  Mutex mutex_;
  CondVar found_;
  std::map<std::string, Folder> folders_ ABSL_GUARDED_BY(mutex_);
  TaskQueue queue_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_FOLDERS_FOLDER_LIMITS_H_
