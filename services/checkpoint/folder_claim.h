// FolderClaim: the right of one job to change a checkpoint folder. A folder has
// one owner at a time.
//
//   ROOT/owner.lock   locked by the owner's process for as long as it lives
//   ROOT/owner.json   who the last owner is: folder_owner.h
//
// The lock keeps rivals out. It is held until the owner's process ends in any
// way: a paused owner still has it, and rivals are refused meanwhile. The file
// tells an owner that it has been replaced: each writes its own, with a higher
// epoch, and checks it again before it creates, changes or removes any name in
// the folder. An owner that finds another file, or none, has lost the folder
// and changes nothing from then on.
//
// What holds:
//
// - Where locks work (local disks, NFS, Lustre and the like as they are mounted
//   by default) nobody ever writes to a folder beside its owner.
// - Where they do not, which is logged, or if a person has removed owner.lock
//   to take the folder from a process that hangs, an owner that was replaced
//   can still make the one change that it was about to make when it last
//   looked; there is one system call between the two. That change may create
//   its last checkpoint or remove an older one that its job does not keep;
//   neither mixes shards of two owners, since their names differ (tag()).
// - Members writing shards for a former owner may continue for a while. Their
//   shards have that owner's names and are in no later checkpoint.
//
// In an object store, which has no locks, owner.json is a lease
// (services/storage/object_lease.h), renewed every 10 s by its owner and
// written by conditional requests only, of which one of two rivals' succeeds. A
// rival is refused for 30 s after the last renewal. So an owner that is paused
// for longer may be replaced, and what is said above of disks without locks
// holds: there is one request between its look and its change.
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

// Every change of the folder is to pass Reach(), as the fault points of file.h
// do. Thread-safe.
class FolderClaim final : public FaultPoints {
 public:
  // Makes the job named `job` the owner of `root`, which is made if it is not
  // there. Folders without owner.json are as good as any. `faults`, which is
  // asked first at each change, outlives it.
  //
  // Errors: FailedPrecondition naming the owner, if there is one that lives, or
  // for a store that does not heed conditions; DataLoss if owner.json is
  // damaged; those of storage.h.
  static absl::StatusOr<std::shared_ptr<FolderClaim>> Take(
      const std::string& root, const std::string& job,
      FaultPoints* faults = nullptr);

  // Whether no other process has the folder now, as Take() would find. Changes
  // nothing. Errors: the same.
  static absl::Status CheckFree(const std::string& root);

  ~FolderClaim() override;  // ends it; owner.json stays
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

  // Errors: FailedPrecondition if the folder has another owner, who is named;
  // those of ReadOwner.
  absl::Status Check() const;

  // Before `change` is made. Errors: those of Check().
  absl::Status Reach(const DiskChange& change) override;

  // What the names of the owner's shards begin with: "3-1f09a2c4".
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
