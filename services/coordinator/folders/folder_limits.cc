#include "services/coordinator/folders/folder_limits.h"

#include <utility>

namespace gshard {
namespace {

// Healthy disks need microseconds.
constexpr std::chrono::milliseconds kMoment{200};
// Callers are few; this evicts those removed from the auth file.
constexpr size_t kMaxFolders = 1024;

}  // namespace

std::string FolderLimits::Resolve(const std::string& folder) {
  MutexLock lock(mutex_);
  if (folders_.size() >= kMaxFolders && !folders_.contains(folder)) {
    std::erase_if(folders_, [](const auto& f) { return !f.second.pending; });
  }
  Folder& asked = folders_[folder];
  if (!asked.pending) {
    asked.pending = true;
    asked.since = Clock::now();
    queue_.Post([this, folder] {
      std::string found = resolve_(folder).value_or(folder);
      MutexLock lock(mutex_);
      Folder& answered = folders_[folder];
      answered.found = std::move(found);
      answered.pending = false;
      found_.NotifyAll();
    });
  }
  const auto end = asked.since + kMoment;
  found_.WaitUntil(lock, end, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !folders_[folder].pending;
  });
  const std::string& found = folders_[folder].found;
  return found.empty() ? folder : found;
}

Caller FolderLimits::Resolve(Caller caller) {
  return ResolveFolders(
      std::move(caller),
      [this](absl::string_view folder) -> absl::StatusOr<std::string> {
        return Resolve(std::string(folder));
      });
}

}  // namespace gshard
