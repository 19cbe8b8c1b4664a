// JobPreparation: the preparation of a training job before members are
// involved, which may take minutes: the claim to its folder, the checkpoint to
// resume from, and its tokenizers. For a thread that may block on disks.
// Unavailable means that a disk or store is away: retry.

#ifndef SERVICES_COORDINATOR_PREPARATION_JOB_PREPARATION_H_
#define SERVICES_COORDINATOR_PREPARATION_JOB_PREPARATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/folder_claim.h"
#include "services/config/training_job.h"
#include "services/coordinator/preparation/job_checkpoint.h"
#include "services/coordinator/preparation/job_tokenizers.h"

namespace gshard {

// Where a job continues.
struct ResumePoint {
  // Null: from the job's seed.
  std::unique_ptr<CheckpointReader> checkpoint;
  // From the start, with the weights of `checkpoint`, which is another job's.
  bool weights_only = false;
  // The best of the checkpoints that record a validation loss.
  struct Best {
    int64_t step = 0;
    double loss = 0;
  };
  std::optional<Best> best;
  // What became of the checkpoint to return to, if it no longer exists or is
  // damaged: the steps from here to it are made again.
  absl::Status lost;
  // Nothing is left to train: `checkpoint`, which has been verified, has all
  // steps.
  bool trained = false;
};

struct PreparedJob {
  // The job, with the sizes of the tokenizers' vocabularies.
  TrainingJob job;
  JobTokenizers tokenizers;
  absl::Duration time_to_index;  // for routers; see job_files.h
  ResumePoint start;             // if trained, there are no tokenizers
};

struct JobIntent {
  bool resume = false;
  // It was running when an earlier coordinator ended, and may be fully trained.
  bool restored = false;
  // Of a job that resumes: the step of its last checkpoint when it was
  // submitted or, if it is restored, when that coordinator ended; 0: it had
  // none.
  int64_t checkpoint_step = 0;
};

// The claim to the job's folder. Errors: those of FolderClaim::Take; for a
// restored job Unavailable if its previous coordinator still holds the folder:
// if that host has died, the file server keeps its lock until a lease expires.
// Unavailable, too, as of CheckIsThere: nothing is created in place of a disk
// that is not mounted.
absl::StatusOr<std::shared_ptr<FolderClaim>> ClaimFolder(
    const TrainingJob& job, const JobIntent& intent,
    FaultPoints* faults = nullptr);

// How long a job waits for its folder: longer than file servers keep the lock
// of a dead client.
inline constexpr absl::Duration kClaimWait = absl::Minutes(5);

// The job that has `claim`. Errors: those of OpenToResume, PrepareTokenizers,
// CheckResumable, OpenInitial and CheckIsThere; AlreadyExists if there are
// checkpoints but the job is not to resume; Cancelled if stop is requested.
absl::StatusOr<PreparedJob> PrepareJob(TrainingJob job, const JobIntent& intent,
                                       FolderClaim& claim,
                                       std::stop_token stop);

// Where the job that has `claim`, and had the checkpoint of `step` (0: none),
// continues after an interruption; it may be trained, since the commit of a
// checkpoint may succeed and seem to fail. Errors: those of FolderClaim::Check,
// then those of OpenToResume, CheckResumable, OpenInitial and CheckIsThere.
absl::StatusOr<ResumePoint> FindResumePoint(const TrainingJob& job,
                                            int64_t step, FolderClaim& claim,
                                            Scrutiny scrutiny,
                                            std::stop_token stop);

// The same, returning to the checkpoint of `step`, 0 for the start; if that is
// lost, to an earlier one. Errors: also those of OpenToRollBack.
absl::StatusOr<ResumePoint> FindRollbackPoint(const TrainingJob& job,
                                              int64_t step, FolderClaim& claim,
                                              Scrutiny scrutiny,
                                              std::stop_token stop);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_PREPARATION_JOB_PREPARATION_H_
