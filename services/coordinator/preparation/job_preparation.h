// JobPreparation: the preparation of a training job before members are
// involved, which may take minutes: the claim to its folder, the checkpoint to
// resume from, and its tokenizers. For a thread that may block on disks.

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

// Where a job goes on.
struct ResumePoint {
  std::unique_ptr<CheckpointReader> checkpoint;  // null: from the start
  // Of the checkpoints in the folder that say what their loss is, the best.
  struct Best {
    int64_t step = 0;
    double loss = 0;
  };
  std::optional<Best> best;
  // The checkpoint that was to be gone back to is not there any more.
  bool lost = false;
};

struct PreparedJob {
  // Not OK: the folder of a restored job is still its own of before, as this
  // says, and nothing is prepared. Where the host of that coordinator has died,
  // the lock stays until the file server's lease is over. To be tried again.
  absl::Status held;
  std::shared_ptr<FolderClaim> claim;
  // As it was, with the sizes of the tokenizers' vocabularies.
  TrainingJob job;
  JobTokenizers tokenizers;
  absl::Duration time_to_index;  // of routers; see job_files.h
  ResumePoint start;
  // Nothing is left to train: `start` has all steps, and there are no
  // tokenizers.
  bool trained = false;
};

struct JobIntent {
  bool resume = false;
  // It was running when an earlier coordinator ended, and may be trained.
  bool restored = false;
};

// How long a restored job waits for its folder: longer than file servers keep
// the lock of a dead client.
inline constexpr absl::Duration kClaimWait = absl::Minutes(5);

// Errors: those of FolderClaim::Take, OpenToResume, PrepareTokenizers and
// CheckResumable; AlreadyExists if there are checkpoints, and the job is not to
// go on from them; Cancelled if it is told to stop.
absl::StatusOr<PreparedJob> PrepareJob(TrainingJob job, const JobIntent& intent,
                                       std::stop_token stop,
                                       FaultPoints* faults = nullptr);

// Where the job that has `claim` goes on after it was interrupted. Errors:
// those of FolderClaim::Check, before those of OpenToResume and CheckResumable.
absl::StatusOr<ResumePoint> FindResumePoint(const TrainingJob& job,
                                            FolderClaim& claim,
                                            Scrutiny scrutiny,
                                            std::stop_token stop);

// The same, going back to the checkpoint of `step`, 0 for the start. If that is
// not there any more or damaged it is `lost`, and set aside with those after
// it.
absl::StatusOr<ResumePoint> FindRollbackPoint(const TrainingJob& job,
                                              int64_t step, FolderClaim& claim,
                                              Scrutiny scrutiny,
                                              std::stop_token stop);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_PREPARATION_JOB_PREPARATION_H_
