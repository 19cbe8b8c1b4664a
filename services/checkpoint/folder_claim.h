// FolderClaim: the right of one job to change a checkpoint folder. A folder has
// one owner at a time.
//
//   ROOT/owner.lock   locked by the owner's process for as long as it lives
//   ROOT/owner.json   who the last owner is: folder_owner.h
//
// The lock keeps rivals out. It ends with the owner, however that ends, and not
// before: an owner that is paused has it still, and who comes meanwhile is
// refused. The file tells an owner that it has been replaced: each writes its
// own, with a higher epoch, and looks at it again before every name that it
// makes, changes or removes in the folder. Whoever finds another there, or
// none, has lost, and changes nothing from then on.
//
// What holds:
//
// - Where locks work (local disks, NFS, Lustre and the like as they are mounted
//   by default) nobody ever writes to a folder beside its owner.
// - Where they do not, which is logged, or if a person has removed owner.lock
//   to take the folder from a process that hangs, an owner that was replaced
//   can still make the one change that it was about to make when it last
//   looked; there is one system call between the two. That change may make its
//   last checkpoint, or take away an older one that its job does not keep;
//   neither makes a checkpoint of two owners' shards, for those of each have
//   names of their own (tag()).
// - Members that write shards for an owner that is gone may go on for a while.
//   What they write has the names of that owner and is in no later checkpoint.
//
// What does not hold: that others, who read the folder, find a checkpoint there
// until they have opened it; and anything against whoever may write into the
// folder and does not use this.

#ifndef SERVICES_CHECKPOINT_FOLDER_CLAIM_H_
#define SERVICES_CHECKPOINT_FOLDER_CLAIM_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/fault_points.h"
#include "services/checkpoint/folder_owner.h"

namespace gshard {

// Every change of the folder is to pass Reach(), as the fault points of file.h
// do. Thread-safe.
class FolderClaim final : public FaultPoints {
 public:
  // Makes the job named `job` the owner of `root`, which is made if it is not
  // there. Folders without owner.json are as good as any. `faults`, which is
  // asked first at each change, outlives it.
  //
  // Errors: FailedPrecondition naming the owner, if there is one that lives;
  // DataLoss if owner.json is damaged; those of file.h.
  static absl::StatusOr<std::shared_ptr<FolderClaim>> Take(
      const std::string& root, const std::string& job,
      FaultPoints* faults = nullptr);

  // Whether Take() would find that no other process has it now. Changes
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

  const std::string root_;
  const int lock_;  // a descriptor of owner.lock
  FaultPoints* const faults_;
  FolderOwner owner_;
};

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_FOLDER_CLAIM_H_
