// FolderClaim: one job's exclusive right to change a checkpoint folder.
//
//   ROOT/owner.lock   locked by the owner's process for as long as it lives
//   ROOT/owner.json   who the last owner is: folder_owner.h
//
// The lock keeps rivals out. It is held until the owner's process ends in any
// way: a paused owner still holds it, and rivals are refused meanwhile. The
// file tells an owner that it has been replaced: each owner writes its own,
// with a higher epoch, and checks it again before it creates, changes or
// removes any name in the folder. An owner that finds another file, or none,
// has lost the folder and changes nothing from then on.
//
// Guarantees:
//
// - Where locks work (local disks, and NFS, Lustre and the like as mounted by
//   default) nobody but the owner ever writes to a folder.
// - Where they do not, which is logged, or if a person has removed owner.lock
//   to take the folder from a hanging process, a replaced owner can still make
//   the one change that it was about to make after its last check, since there
//   is one system call in between. That change may create its last checkpoint
//   or remove an older one that its job does not keep; neither mixes shards of
//   two owners, since their names differ (tag()).
// - Members writing shards for a former owner may continue for a while. Their
//   shards have that owner's names and are in no later checkpoint.
//
// In an object store, which has no locks, owner.json is a lease
// (services/storage/object_lease.h), renewed every 10 s by its owner and
// written by conditional requests only, so one of two rivals succeeds. A rival
// is refused for 30 s after the last renewal. So an owner that is paused for
// longer may be replaced, and the case without locks above applies, with one
// request between check and change.
//
// Not guaranteed: that a reader's checkpoint is not removed before it is
// opened; and anything against writers that do not use this class.

#ifndef SERVICES_CHECKPOINT_FOLDER_CLAIM_H_
#define SERVICES_CHECKPOINT_FOLDER_CLAIM_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/folder_owner.h"
#include "services/storage/fault_points.h"
#include "services/storage/object_lease.h"

namespace gshard {

// Every change of the folder must call Reach(), like the fault points of
// file.h. Thread-safe.
class FolderClaim final : public FaultPoints {
 public:
  // Makes the job named `job` the owner of `root`, which is created if absent.
  // Folders without owner.json are accepted. `faults`, which is consulted first
  // at each change, outlives it.
  //
  // Errors: FailedPrecondition naming the owner, if there is a live one, or for
  // a store without conditional requests; DataLoss if owner.json is damaged;
  // those of storage.h.
  static absl::StatusOr<std::shared_ptr<FolderClaim>> Take(
      const std::string& root, const std::string& job,
      FaultPoints* faults = nullptr);

  // Checks that no other process owns the folder now, like Take(), but changes
  // nothing. Errors: the same.
  static absl::Status CheckFree(const std::string& root);

  ~FolderClaim() override;  // releases it; owner.json stays
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

  // Errors: FailedPrecondition naming another owner of the folder; those of
  // ReadOwner.
  absl::Status Check() const;

  // Before `change` is made. Errors: those of Check().
  absl::Status Reach(const DiskChange& change) override;

  // Prefix of the owner's shard names: "3-1f09a2c4".
  std::string tag() const;

 private:
  FolderClaim(std::string root, int lock, FaultPoints* faults)
      : root_(std::move(root)), lock_(lock), faults_(faults) {}
  static absl::StatusOr<std::shared_ptr<FolderClaim>> TakeLease(
      const std::string& root, const std::string& job, FaultPoints* faults);

  const std::string root_;
  const int lock_;  // a descriptor of owner.lock; -1 in an object store
  FaultPoints* const faults_;
  FolderOwner owner_;
  std::unique_ptr<ObjectLease> lease_;  // in an object store
};

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_FOLDER_CLAIM_H_
