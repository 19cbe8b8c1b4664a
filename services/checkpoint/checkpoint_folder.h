// The checkpoints of a job: listing, choosing one to resume from, pruning.
//
//   ROOT/step-00001200            a checkpoint
//   ROOT/step-00001400.partial    being written, or abandoned
//   ROOT/step-00001000.removed    being removed
//   ROOT/step-00001300.damaged    set aside, to be looked at by a person
//   ROOT/owner.json, owner.lock   who may change it: folder_claim.h
//
// In an object store, where nothing is renamed, the manifest alone tells:
// step-00001200/ is a checkpoint with manifest.json, set aside with
// manifest.json.damaged, and else being written or removed. One that was set
// aside goes when its step is written again.

#ifndef SERVICES_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define SERVICES_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"
#include "services/storage/fault_points.h"

namespace gshard {

// ROOT/step-00001200, and where that is written before it is committed.
std::string CheckpointPath(const std::string& root, int64_t step);
std::string PartialCheckpointPath(const std::string& root, int64_t step);

// Paths of the committed checkpoints, newest first. Errors: those of storage.h;
// none for a root that does not exist.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(
    const std::string& root);

// The newest checkpoint that opens, with sound tokenizers; tensors are not
// read. Damaged ones are passed over with a warning in the log. Errors:
// NotFound if there is none at all; DataLoss if none of those there can be
// read; other errors of CheckpointReader for problems that may pass (no
// permission, no descriptors, a release that is too old), which do not justify
// an older checkpoint.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenLatestCheckpoint(
    const std::string& root);
// Its path.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);

// The same, after all of it has been read and compared with its checksums,
// which costs one pass over the checkpoint. Errors: also those of
// CheckpointReader::Verify.
absl::StatusOr<std::unique_ptr<CheckpointReader>> LatestGoodCheckpoint(
    const std::string& root, std::stop_token stop = {});

// Of the checkpoints that open, the one with the lowest validation loss; the
// oldest of equal ones. Errors: NotFound if no loss is recorded; as above.
absl::StatusOr<std::string> BestCheckpoint(const std::string& root);

// Before a job trains on from `step` (-1: from the start): gives each newer
// checkpoint, which must be bad, the suffix ".damaged", and removes leftovers
// of dead writers, so that the job's new checkpoints have free names.
//
// This and the following functions modify `root`, which only its owner may do:
// `faults` is the FolderClaim if others may write there.
absl::Status ClearAfter(const std::string& root, int64_t step,
                        FaultPoints* faults = nullptr);

struct KeepPolicy {
  int64_t last = 1;  // newest first, >= 1
  int64_t best = 0;  // by validation loss, lowest first, >= 0
  // Paths, however spelled, of checkpoints that stay beside these.
  std::vector<std::string> pinned = {};
};

// Removes all other checkpoints. Damaged ones count for neither number; they go
// once `last` newer good ones are there. Each is renamed to ".removed" first,
// or loses its manifest first, so that a crash leaves no half checkpoint; on a
// disk a reader that has it open can go on. Errors: InvalidArgument for a
// policy out of range; those of storage.h.
absl::Status PruneCheckpoints(const std::string& root, const KeepPolicy& keep,
                              FaultPoints* faults = nullptr);

// Removes every ".removed", and every ".partial" of a step before `step`.
absl::Status RemoveLeftovers(const std::string& root, int64_t step,
                             FaultPoints* faults = nullptr);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_CHECKPOINT_FOLDER_H_
