// Metadata of a training job's checkpoint, and opening one for training or
// serving.

#ifndef SERVICES_COORDINATOR_PREPARATION_JOB_CHECKPOINT_H_
#define SERVICES_COORDINATOR_PREPARATION_JOB_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/job.pb.h"
#include "proto/gshard/v1/training.pb.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/folder_claim.h"
#include "services/config/training_job.h"
#include "services/coordinator/preparation/job_tokenizers.h"

namespace gshard {

// Keys of Manifest.metadata.
inline constexpr char kJobKey[] = "job";    // the job in text form
inline constexpr char kSeedKey[] = "seed";  // decimal

// Commits the shards of `step` as a checkpoint of the job, removes checkpoints
// that the job does not keep and that are not `pinned`, and returns its path.
// `faults` is the job's claim to the folder. `validation_loss`, of this step's
// weights, is recorded if measured. Errors: FailedPrecondition if `tensors` do
// not match the job's model; those of CommitCheckpoint.
absl::StatusOr<std::string> CommitJobCheckpoint(
    const TrainingJob& job, const JobTokenizers& tokenizers, int64_t step,
    std::vector<TensorEntry> tensors,
    std::optional<double> validation_loss = std::nullopt,
    std::vector<std::string> pinned = {}, FaultPoints* faults = nullptr);

// The step to which ROLLBACK returns from a step after `step`: the checkpoint
// of the last multiple of checkpoint.every_steps, or 0 for the start. That, or
// the newest before it, is always kept.
int64_t RollbackBase(const TrainingJob& job, int64_t step);

// How much of a checkpoint is verified before a job continues from it.
enum class Scrutiny {
  // Only what the coordinator needs. Each tensor is verified by the process
  // that loads it before the first step.
  kQuick,
  kFull,  // everything: one pass over it
};

// The newest checkpoint in the job's folder, of step `last` or before; null if
// there is none. Errors: those of OpenLatestCheckpoint or LatestGoodCheckpoint;
// FailedPrecondition if its manifest names another job.
absl::StatusOr<std::unique_ptr<CheckpointReader>> LatestOfJob(
    const TrainingJob& job, Scrutiny scrutiny, std::stop_token stop = {},
    int64_t last = kLastStep);

// The same, to resume training from. Newer ones, which are damaged, are set
// aside with a warning, since the job will write these steps again, and remains
// of dead writers are removed. Errors: also those of ClearAfter;
// FailedPrecondition if it has another seed; OutOfRange if it has all of the
// job's steps.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenToResume(
    const TrainingJob& job, FolderClaim& claim, Scrutiny scrutiny,
    std::stop_token stop = {});

// The same, to return to the checkpoint of `step` > 0. If that is lost, it is
// an earlier one, or null for the start, and the steps between are made again:
// only what is bad between them is set aside. Errors: those of LatestOfJob and
// ClearAfter; DataLoss if there is no earlier one, though there was to be.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenToRollBack(
    const TrainingJob& job, int64_t step, FolderClaim& claim, Scrutiny scrutiny,
    std::stop_token stop = {});

// Errors: AlreadyExists naming a checkpoint in the job's folder.
absl::Status CheckWithoutCheckpoints(const TrainingJob& job);

// Checks that `checkpoint` has exactly the tensors of the job, with optimizer
// state, except that the sizes of vocabularies are the checkpoint's. Errors:
// FailedPrecondition naming the difference; DataLoss if the model's
// configuration cannot be read.
absl::Status CheckResumable(const TrainingJob& job,
                            const CheckpointReader& checkpoint);

// The checkpoint of initialize_from, with whose weights the job begins; null if
// it names none. Errors: those of OpenToServe, and of CheckpointReader::Verify;
// FailedPrecondition naming the field if it has other tensors than the job.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenInitial(
    const TrainingJob& job, Scrutiny scrutiny, std::stop_token stop = {});

// The job that wrote the checkpoint, if that says so. Only its values of fields
// are known to be of their types: it may be of another release.
std::optional<v1::TrainingJob> WriterOf(const CheckpointReader& checkpoint);

// Checks that there is a checkpoint in the folder of a job that had that of
// `step`; 0: it had none. Errors: Unavailable: without any the folder is not
// the one that it had, but what lies under its mount point, for example.
absl::Status CheckIsThere(const TrainingJob& job, int64_t step);

// A quick check, without side effects, whether the job can begin: with
// `resume`, from the newest checkpoint in its folder that opens, whose step it
// returns; 0: there is none. Errors: those of CheckWithoutCheckpoints,
// OpenToResume, CheckResumable and OpenInitial; FailedPrecondition if a
// rollback would lack its checkpoint.
absl::StatusOr<int64_t> CheckToBegin(const TrainingJob& job, bool resume);

struct ServableCheckpoint {
  std::string directory;
  std::string canonical;  // its canonical path, to compare with others'
  int64_t step = 0;
  ModelConfig model;
};

// Checks that everything needed for serving is present, ignoring optimizer
// state. May block, as its disk does. Errors: those of CheckpointReader::Open
// and CheckExactly; DataLoss if the model's configuration cannot be read;
// FailedPrecondition without tokenizer.
absl::StatusOr<ServableCheckpoint> OpenToServe(const std::string& directory);

// A shard's entries from a worker, which are untrusted. Errors:
// InvalidArgument.
absl::StatusOr<std::vector<TensorEntry>> EntriesFromProto(
    const v1::CheckpointWritten& written);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_PREPARATION_JOB_CHECKPOINT_H_
