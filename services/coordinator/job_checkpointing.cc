// The checkpoints of a JobRunner: from the command to write one to what follows
// it.

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/coordinator/job_runner.h"

namespace gshard {

absl::Status JobRunner::WriteCheckpoint() {
  phase_ = Phase::kCheckpointing;
  FanOut(*env_.members, *env_.queue,
         ForWorkers([&](size_t w, v1::Command* command) {
           v1::WriteCheckpoint* const write =
               command->mutable_write_checkpoint();
           write->set_session(session_);
           write->set_step(step_);
           write->set_root(job_.checkpoint.directory);
           // A worker of an earlier attempt may write still.
           write->set_shard(absl::StrCat("worker-", w, "-", attempt_));
         }),
         OnQueue([this](const std::vector<v1::CommandReply>& replies) {
           return Annotate(OnCheckpointWritten(replies),
                           absl::StrCat("checkpoint of step ", step_));
         }));
  const auto write_dense = [this]() -> absl::Status {
    ASSIGN_OR_RETURN(const auto writer,
                     CheckpointWriter::Create(job_.checkpoint.directory, step_,
                                              "dense", dense_->TensorSpecs()));
    RETURN_IF_ERROR(dense_->Save(*writer));
    ASSIGN_OR_RETURN(dense_entries_, writer->Finish());
    return absl::OkStatus();
  };
  return Annotate(write_dense(), absl::StrCat("checkpoint of step ", step_));
}

absl::Status JobRunner::OnCheckpointWritten(
    const std::vector<v1::CommandReply>& replies) {
  std::vector<TensorEntry> entries = std::move(dense_entries_);
  for (size_t w = 0; w < replies.size(); ++w) {
    const auto more = EntriesFromProto(replies[w].checkpoint_written());
    RETURN_IF_ERROR(
        Annotate(more.status(),
                 absl::StrCat("expert worker '", plan_.workers[w].name, "'")));
    entries.insert(entries.end(), more->begin(), more->end());
  }
  ASSIGN_OR_RETURN(
      checkpoint_path_,
      CommitJobCheckpoint(job_, tokenizers_, step_, std::move(entries)));
  reporter_->OnCheckpoint(step_, checkpoint_path_, env_.clock());
  OnCheckpointDone();
  return absl::OkStatus();
}

void JobRunner::OnCheckpointDone() {
  if (last_step_ && (!stop_ || step_ >= job_.steps)) return Serve();
  if (!stop_) {
    if (!Rebalance()) BeginStep();
    return;
  }
  if (settings_.durable) {
    return Finish(v1::JOB_STATE_QUEUED,
                  absl::UnavailableError("the coordinator is shutting down"));
  }
  Finish(v1::JOB_STATE_CANCELLED,
         absl::UnavailableError(absl::StrCat(
             "the coordinator is shutting down; submit the job again with "
             "resume to go on from ",
             checkpoint_path_)));
}

}  // namespace gshard
