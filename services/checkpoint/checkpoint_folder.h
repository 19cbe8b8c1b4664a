// The checkpoints of a job: listing, choosing one to resume from, pruning.
//
//   ROOT/step-00001200            a checkpoint
//   ROOT/step-00001400.partial    being written, or abandoned
//   ROOT/step-00001000.removed    being removed
//   ROOT/step-00001300.damaged    set aside, to be looked at by a person
//   ROOT/owner.json, owner.lock   who may change it: folder_claim.h
//
// In an object store, which has no rename, the manifest decides: step-00001200/
// is a checkpoint with manifest.json, set aside with manifest.json.damaged, and
// otherwise being written or removed. One that was set aside is removed when
// its step is written again.

#ifndef SERVICES_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define SERVICES_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"
#include "services/storage/fault_points.h"

namespace gshard {

// ROOT/step-00001200, and its path while being written.
std::string CheckpointPath(const std::string& root, int64_t step);
std::string PartialCheckpointPath(const std::string& root, int64_t step);

inline constexpr int64_t kLastStep = std::numeric_limits<int64_t>::max();

// Paths of the committed checkpoints, newest first; empty if the root does not
// exist. Those of steps after `last` are left out, here and below. Errors:
// those of storage.h.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(
    const std::string& root, int64_t last = kLastStep);

// The newest checkpoint that opens, with intact tokenizers; tensors are not
// read. Skips damaged ones with a warning in the log; where the owner removes
// checkpoints meanwhile, looks for the newer ones. Errors: NotFound if there
// is none at all; DataLoss if none can be read; other errors of
// CheckpointReader for problems that may be temporary (permissions,
// descriptors, an old release), which do not justify an older checkpoint.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenLatestCheckpoint(
    const std::string& root, int64_t last = kLastStep);
// The path of that checkpoint.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);
// The checkpoint that `path` refers to: itself, or the latest one in it.
// Errors: those of LatestCheckpoint.
absl::StatusOr<std::string> CheckpointAt(const std::string& path);

// The same, after reading all of it and verifying its checksums, which costs
// one pass over the checkpoint. Errors: also those of CheckpointReader::Verify.
absl::StatusOr<std::unique_ptr<CheckpointReader>> LatestGoodCheckpoint(
    const std::string& root, std::stop_token stop = {},
    int64_t last = kLastStep);

// The checkpoint with the lowest validation loss among those that open; the
// oldest on ties. Errors: NotFound if no loss is recorded; as above.
absl::StatusOr<std::string> BestCheckpoint(const std::string& root);

// The newest checkpoint of `step` or an earlier one among those that open.
// Errors: NotFound if there is none; as above.
absl::StatusOr<std::string> CheckpointUpTo(const std::string& root,
                                           int64_t step);

// Call before a job continues from `step` (-1: from the start): gives each
// newer checkpoint up to that of `last`, which must be bad, the suffix
// ".damaged", and removes remains of dead writers, so that names of new
// checkpoints are free.
//
// This and the following functions modify `root`, which only its owner may do:
// `faults` is the FolderClaim if others may write there.
absl::Status ClearAfter(const std::string& root, int64_t step,
                        FaultPoints* faults = nullptr,
                        int64_t last = kLastStep);

struct KeepPolicy {
  int64_t last = 1;  // newest first, >= 1
  int64_t best = 0;  // by validation loss, lowest first, >= 0
  // Paths, however spelled, of additional checkpoints to keep.
  std::vector<std::string> pinned = {};
};

// Removes all other checkpoints. Damaged ones do not count; they are removed
// once `last` newer good ones exist. Each is first renamed to ".removed", or
// loses its manifest, so that a crash leaves no partial checkpoint; on a disk,
// readers with open files can continue. Errors: InvalidArgument for a policy
// out of range; those of storage.h.
absl::Status PruneCheckpoints(const std::string& root, const KeepPolicy& keep,
                              FaultPoints* faults = nullptr);

// Removes every ".removed", and every ".partial" of a step before `step`.
absl::Status RemoveLeftovers(const std::string& root, int64_t step,
                             FaultPoints* faults = nullptr);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_CHECKPOINT_FOLDER_H_
