#include "services/coordinator/folders/path_rights.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/status_macros.h"
#include "services/storage/canonical_path.h"

namespace gshard {
namespace {

// Whether canonical `path` is in one of `folders`. Errors: Unavailable if it is
// in no resolvable one, and some cannot be resolved.
absl::StatusOr<bool> IsWithinOne(const std::string& path,
                                 const std::vector<std::string>& folders,
                                 const PathResolver& resolve) {
  absl::Status unknown;
  for (const std::string& folder : folders) {
    const absl::StatusOr<std::string> there = resolve(folder);
    if (there.ok() && IsWithin(path, *there)) return true;
    if (!there.ok()) {
      unknown = absl::UnavailableError(
          absl::StrCat("whether '", path, "' is in '", folder,
                       "' cannot be told: ", there.status().message()));
    }
  }
  RETURN_IF_ERROR(unknown);
  return false;
}

// Folders where the caller may train; empty if unrestricted.
std::vector<std::string> TrainingFolders(const Caller& caller) {
  std::vector<std::string> folders;
  for (const Grant& grant : caller.grants) {
    if (grant.role != Role::kTrain) continue;
    if (grant.limit.empty()) return {};
    folders.push_back(grant.limit);
  }
  return folders;
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
  const absl::StatusOr<std::string> there = resolve_(written);
  // A path that the process may not read is not one that the caller may not
  // name; nor does waiting help.
  if (absl::IsPermissionDenied(there.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", written,
                     "': expected a path that the coordinator "
                     "may look into: ",
                     there.status().message()));
  }
  ASSIGN_OR_RETURN(*path, there);
  if (roots_.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool within, IsWithinOne(*path, roots_, resolve_));
  if (within) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("'", written,
                   "' is not in the coordinator's --data_roots: expected a "
                   "path in ",
                   absl::StrJoin(roots_, " or ")));
}

absl::Status PathRights::Admit(const Caller& caller, TrainingJob* job) const {
  const Caller resolved = ResolveFolders(caller, resolve_);
  for (auto& [field, path] : PathsOf(job)) {
    if (path->empty()) continue;
    const std::string written = *path;
    RETURN_IF_ERROR(Annotate(Admit(path), field));
    if (MayTrainIn(resolved, *path)) continue;
    RETURN_IF_ERROR(Annotate(
        IsWithinOne(*path, TrainingFolders(caller), resolve_).status(), field));
    return absl::PermissionDeniedError(absl::StrCat(
        field, ": '", written, "' is not where caller '", caller.name,
        "' may train: expected a path in ", FolderList(caller)));
  }
  return absl::OkStatus();
}

JobOwnership OwnershipOf(const std::string& submitter, TrainingJob job) {
  std::set<std::string> folders;
  for (const auto& [field, path] : PathsOf(&job)) {
    if (path->empty()) continue;
    const bool is_folder = path == &job.checkpoint.directory ||
                           path == &job.summary_directory ||
                           path == &job.initialize_from;
    folders.insert(is_folder
                       ? *path
                       : std::filesystem::path(*path).parent_path().string());
  }
  return {submitter, {folders.begin(), folders.end()}};
}

Caller ResolveFolders(Caller caller, const PathResolver& resolve) {
  for (Grant& grant : caller.grants) {
    if (grant.role != Role::kTrain || grant.limit.empty()) continue;
    grant.limit = resolve(grant.limit).value_or(grant.limit);
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
