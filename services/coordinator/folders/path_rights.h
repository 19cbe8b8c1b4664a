// PathRights: where files and folders named by callers may be: for everyone in
// the folders of --data_roots, and for jobs of a caller with limited training
// rights also in that caller's folders.
//
// Paths are checked when a job or model is accepted, and are canonical from
// then on: members open the checked path. Anyone with other write access to
// these disks can still replace a folder by a link afterwards; file permissions
// must prevent that.

#ifndef SERVICES_COORDINATOR_FOLDERS_PATH_RIGHTS_H_
#define SERVICES_COORDINATOR_FOLDERS_PATH_RIGHTS_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/config/training_job.h"
#include "services/rpc/security/caller.h"
#include "services/storage/canonical_path.h"

namespace gshard {

// CanonicalPath(), or a fake in tests.
using PathResolver =
    std::function<absl::StatusOr<std::string>(absl::string_view)>;

// Immutable. Methods access the disk and may block.
class PathRights {
 public:
  // Without roots paths are unrestricted. A root need not exist.
  explicit PathRights(std::vector<std::string> roots = {},
                      PathResolver resolve = CanonicalPath)
      : roots_(std::move(roots)), resolve_(std::move(resolve)) {}

  // Makes a path canonical. Errors: those of CanonicalPath, InvalidArgument for
  // its denials; PermissionDenied if it leads out of the roots; Unavailable if
  // that cannot be told: a missing disk may be back and decide otherwise.
  absl::Status Admit(std::string* path) const;

  // The same for all paths in a job, which must also be in folders of `caller`.
  // Errors name the field.
  absl::Status Admit(const Caller& caller, TrainingJob* job) const;

 private:
  const std::vector<std::string> roots_;
  const PathResolver resolve_;
};

// The properties of a job that decide who may follow and end it.
struct JobOwnership {
  std::string submitter;             // the caller's name
  std::vector<std::string> folders;  // contain all its paths
};

JobOwnership OwnershipOf(const std::string& submitter, TrainingJob job);

// The caller with canonical folders, as the functions below require. A folder
// that cannot be resolved stays as it is: nothing in it can be resolved either.
Caller ResolveFolders(Caller caller,
                      const PathResolver& resolve = CanonicalPath);

// Whether the caller may follow, list and cancel the job, and submit another
// under its name: it has no limits, or submitted the job, or may train in all
// of its folders. REQUIRES: the folders of `caller` are resolved.
bool MayFollow(const Caller& caller, const JobOwnership& job);

// Errors: PermissionDenied.
absl::Status CheckFollow(const Caller& caller, const JobOwnership& job,
                         const std::string& name);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_FOLDERS_PATH_RIGHTS_H_
