#include "services/coordinator/path_rights.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/canonical_path.h"

namespace gshard {
namespace {

// As it is if it cannot be resolved.
std::string Resolve(const std::string& folder) {
  return CanonicalPath(folder).value_or(folder);
}

std::vector<std::string> Resolve(std::vector<std::string> folders) {
  for (std::string& folder : folders) folder = Resolve(folder);
  return folders;
}

bool IsWithinOne(const std::string& path,
                 const std::vector<std::string>& folders) {
  return std::any_of(
      folders.begin(), folders.end(),
      [&](const std::string& folder) { return IsWithin(path, folder); });
}

std::string FolderList(const Caller& caller) {
  std::vector<std::string> folders;
  for (const Grant& grant : caller.grants) {
    if (grant.role == Role::kTrain) folders.push_back(grant.limit);
  }
  return folders.empty() ? "no folder" : absl::StrJoin(folders, " or ");
}

}  // namespace

absl::Status PathRights::Admit(std::string* path) const {
  const std::string written = *path;
  ASSIGN_OR_RETURN(*path, CanonicalPath(written));
  if (roots_.empty() || IsWithinOne(*path, Resolve(roots_))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("'", written,
                   "' is not in the coordinator's --data_roots: expected a "
                   "path in ",
                   absl::StrJoin(roots_, " or ")));
}

absl::Status PathRights::Admit(const Caller& caller, TrainingJob* job) const {
  const Caller resolved = ResolveFolders(caller);
  for (std::string* path : PathsOf(job)) {
    if (path->empty()) continue;
    const std::string written = *path;
    RETURN_IF_ERROR(Admit(path));
    if (MayTrainIn(resolved, *path)) continue;
    return absl::PermissionDeniedError(
        absl::StrCat("'", written, "' is not where caller '", caller.name,
                     "' may train: expected a path in ", FolderList(caller)));
  }
  return absl::OkStatus();
}

JobOwnership OwnershipOf(const std::string& submitter, TrainingJob job) {
  std::set<std::string> folders;
  for (const std::string* path : PathsOf(&job)) {
    if (path->empty()) continue;
    const bool is_folder =
        path == &job.checkpoint.directory || path == &job.summary_directory;
    folders.insert(is_folder
                       ? *path
                       : std::filesystem::path(*path).parent_path().string());
  }
  return {submitter, {folders.begin(), folders.end()}};
}

Caller ResolveFolders(Caller caller) {
  for (Grant& grant : caller.grants) {
    if (grant.role != Role::kTrain || grant.limit.empty()) continue;
    grant.limit = Resolve(grant.limit);
  }
  return caller;
}

bool MayFollow(const Caller& caller, const JobOwnership& job) {
  return !IsLimited(caller) || caller.name == job.submitter ||
         std::all_of(job.folders.begin(), job.folders.end(),
                     [&](const std::string& folder) {
                       return MayTrainIn(caller, folder);
                     });
}

absl::Status CheckFollow(const Caller& caller, const JobOwnership& job,
                         const std::string& name) {
  if (MayFollow(caller, job)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "job '", name, "' is another caller's and not in ", FolderList(caller),
      ", where caller '", caller.name, "' may train"));
}

}  // namespace gshard
