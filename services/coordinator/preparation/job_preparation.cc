#include "services/coordinator/preparation/job_preparation.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/coordinator/preparation/job_files.h"
#include "services/storage/storage.h"

namespace gshard {
namespace {

std::optional<ResumePoint::Best> FindBest(const std::string& root) {
  const absl::StatusOr<std::string> path = BestCheckpoint(root);
  if (!path.ok()) return std::nullopt;  // no loss was recorded
  const auto reader = CheckpointReader::Open(*path);
  if (!reader.ok()) return std::nullopt;
  const Manifest& manifest = (*reader)->manifest();
  if (!manifest.validation_loss.has_value()) return std::nullopt;
  return ResumePoint::Best{manifest.step, *manifest.validation_loss};
}

// `checkpoint` is null for the start of the job.
absl::StatusOr<ResumePoint> ResumePointAt(
    const TrainingJob& job, std::unique_ptr<CheckpointReader> checkpoint,
    Scrutiny scrutiny, std::stop_token stop) {
  ResumePoint point;
  if (checkpoint == nullptr) {
    ASSIGN_OR_RETURN(point.checkpoint, OpenInitial(job, scrutiny, stop));
    point.weights_only = point.checkpoint != nullptr;
    return point;
  }
  RETURN_IF_ERROR(CheckResumable(job, *checkpoint));
  point.best = FindBest(job.checkpoint.directory);
  point.checkpoint = std::move(checkpoint);
  return point;
}

// If the job has lost its folder, the content is another owner's and says
// nothing about this job: reports the loss instead.
absl::StatusOr<ResumePoint> OfOwner(const FolderClaim& claim,
                                    absl::StatusOr<ResumePoint> found) {
  RETURN_IF_ERROR(claim.Check());
  return found;
}

// The checkpoint of all steps, of a job that may have one without having
// recorded it; null without. Nothing may load it any more, so it is verified
// here. If it is damaged, the job goes on from the last good one: `scrutiny`
// finds that.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenTrained(
    const TrainingJob& job, Scrutiny* scrutiny, std::stop_token stop) {
  const auto newest = OpenLatestCheckpoint(job.checkpoint.directory);
  if (!newest.ok() || (*newest)->manifest().step < job.steps) return nullptr;
  *scrutiny = Scrutiny::kFull;
  ASSIGN_OR_RETURN(auto checkpoint, LatestOfJob(job, *scrutiny, stop));
  if (checkpoint == nullptr || checkpoint->manifest().step < job.steps) {
    return nullptr;
  }
  return checkpoint;
}

// Removes files that killed coordinators were writing; nobody else writes there
// while the job has its folder.
void RemoveHalfWritten(const TrainingJob& job, FolderClaim* claim) {
  const auto remove = [&](const std::string& directory,
                          absl::string_view prefix) {
    const Storage& storage = Storage::Of(directory);
    const auto names = storage.List(directory);
    if (!names.ok()) return;  // not made yet
    for (const std::string& name : *names) {
      if (!absl::StartsWith(name, prefix) ||
          !(absl::EndsWith(name, ".tmp") ||
            absl::StrContains(name, ".training-"))) {
        continue;
      }
      const absl::Status removed =
          storage.Remove(absl::StrCat(directory, "/", name), claim);
      if (!removed.ok()) {
        LogWarning("what a coordinator left half written stays",
                   {{"job", job.name}, {"status", removed}});
      }
    }
  };
  remove(job.checkpoint.directory, "owner.json.");
  remove(TokenizerDirectory(job), "");
}

}  // namespace

absl::StatusOr<std::shared_ptr<FolderClaim>> ClaimFolder(
    const TrainingJob& job, const JobIntent& intent, FaultPoints* faults) {
  // First: a claim creates the folder, and files in it.
  RETURN_IF_ERROR(CheckIsThere(job, intent.checkpoint_step));
  const std::string& root = job.checkpoint.directory;
  auto claim = FolderClaim::Take(root, job.name, faults);
  if (!intent.restored || !absl::IsFailedPrecondition(claim.status())) {
    return claim;
  }
  const auto owner = ReadOwner(root);
  if (!owner.ok() || !owner->has_value() || (*owner)->job != job.name) {
    return claim;
  }
  return absl::UnavailableError(absl::StrCat(
      "checkpoint folder ", root, " is still in use by ", Describe(**owner),
      " of before the restart; end it if it runs"));
}

absl::StatusOr<PreparedJob> PrepareJob(TrainingJob job, const JobIntent& intent,
                                       FolderClaim& claim,
                                       std::stop_token stop) {
  if (stop.stop_requested()) return absl::CancelledError("told to stop");
  PreparedJob prepared;
  RemoveHalfWritten(job, &claim);
  std::unique_ptr<CheckpointReader> checkpoint;
  Scrutiny scrutiny = Scrutiny::kQuick;
  if (intent.restored) {
    ASSIGN_OR_RETURN(checkpoint, OpenTrained(job, &scrutiny, stop));
  }
  if (checkpoint != nullptr) {
    prepared.start.trained = true;
    prepared.start.checkpoint = std::move(checkpoint);
    prepared.job = std::move(job);
    return prepared;
  }
  if (intent.resume) {
    ASSIGN_OR_RETURN(checkpoint, OpenToResume(job, claim, scrutiny, stop));
    if (checkpoint == nullptr) {
      RETURN_IF_ERROR(CheckIsThere(job, intent.checkpoint_step));
    }
  } else {
    RETURN_IF_ERROR(CheckWithoutCheckpoints(job));
  }
  ASSIGN_OR_RETURN(prepared.start, ResumePointAt(job, std::move(checkpoint),
                                                 Scrutiny::kQuick, stop));
  ASSIGN_OR_RETURN(
      prepared.tokenizers,
      PrepareTokenizers(&job, prepared.start.checkpoint.get(), stop, &claim));
  RETURN_IF_ERROR(ValidateTrainingJob(job));
  prepared.time_to_index = TimeToIndex(job.data);
  prepared.job = std::move(job);
  return prepared;
}

absl::StatusOr<ResumePoint> FindResumePoint(const TrainingJob& job,
                                            int64_t step, FolderClaim& claim,
                                            Scrutiny scrutiny,
                                            std::stop_token stop) {
  auto checkpoint = OpenToResume(job, claim, scrutiny, stop);
  if (absl::IsOutOfRange(checkpoint.status())) {
    checkpoint = OpenTrained(job, &scrutiny, stop);
    if (checkpoint.ok() && *checkpoint != nullptr) {
      ResumePoint end;
      end.checkpoint = *std::move(checkpoint);
      end.trained = true;
      return OfOwner(claim, std::move(end));
    }
    if (checkpoint.ok()) checkpoint = OpenToResume(job, claim, scrutiny, stop);
  }
  if (!checkpoint.ok()) return OfOwner(claim, checkpoint.status());
  if (*checkpoint == nullptr) {
    const absl::Status there = CheckIsThere(job, step);
    if (!there.ok()) return OfOwner(claim, there);
  }
  return OfOwner(claim,
                 ResumePointAt(job, *std::move(checkpoint), scrutiny, stop));
}

absl::StatusOr<ResumePoint> FindRollbackPoint(const TrainingJob& job,
                                              int64_t step, FolderClaim& claim,
                                              Scrutiny scrutiny,
                                              std::stop_token stop) {
  if (step == 0) return ResumePointAt(job, nullptr, scrutiny, stop);
  auto opened = OpenToRollBack(job, step, claim, scrutiny, stop);
  if (!opened.ok()) return OfOwner(claim, opened.status());
  absl::Status lost;
  if (*opened == nullptr || (*opened)->manifest().step < step) {
    lost = absl::DataLossError(absl::StrCat(
        "checkpoint ", CheckpointPath(job.checkpoint.directory, step),
        ", to which the job goes back, is lost: its steps are made again from ",
        *opened == nullptr ? "the start" : (*opened)->path()));
    LogError("a checkpoint is lost", {{"job", job.name}, {"status", lost}});
  }
  auto point = ResumePointAt(job, *std::move(opened), scrutiny, stop);
  if (point.ok()) point->lost = lost;
  return OfOwner(claim, std::move(point));
}

}  // namespace gshard
