#include "services/coordinator/training/checkpoint_write.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/coordinator/preparation/job_checkpoint.h"

namespace gshard {

CheckpointWrite::CheckpointWrite(JobContext* context, int64_t step,
                                 std::optional<double> validation_loss,
                                 MemberCommands commands,
                                 std::optional<std::vector<NamedTensor>> dense)
    : context_(context), step_(step), validation_loss_(validation_loss) {
  for (const auto& [member, command] : commands) {
    writers_.push_back(member);
  }
  replies_ = context_->Send(std::move(commands));
  if (!dense.has_value()) return;
  dense_->tensors = *std::move(dense);
  dense_entries_ = context_->OnDisk<std::vector<TensorEntry>>(
      [dense = dense_, root = context_->job.checkpoint.directory, step,
       claim = context_->claim]() -> absl::StatusOr<std::vector<TensorEntry>> {
        if (dense->abandoned) return absl::CancelledError("it is given up");
        return WriteShard(
            {.root = root,
             .step = step,
             .shard = absl::StrCat(claim->tag(), "-dense")},
            dense->tensors, [&] { return dense->abandoned.load(); },
            claim.get());
      });
}

void CheckpointWrite::Fail(const absl::Status& status,
                           std::optional<MemberKey> by_member) {
  path_ = Annotate(status, absl::StrCat("checkpoint of step ", step_));
  failed_member_ = std::move(by_member);
}

void CheckpointWrite::Poll() {
  if (done()) return;
  if (!replies_->error.ok()) {
    return Fail(replies_->error, writers_[replies_->failed]);
  }
  if (dense_entries_ != nullptr && dense_entries_->has_value()) {
    dense_->tensors.clear();
    const absl::Status written = (*dense_entries_)->status();
    if (!written.ok()) return Fail(written);
  }
  if (commit_ == nullptr) BeginCommit();
  if (commit_ == nullptr || !commit_->has_value()) return;
  const absl::Status committed = (*commit_)->status();
  if (!committed.ok()) return Fail(committed);
  path_ = **commit_;
}

void CheckpointWrite::BeginCommit() {
  if (replies_->missing > 0) return;
  std::vector<TensorEntry> entries;
  if (dense_entries_ != nullptr) {
    if (!dense_entries_->has_value()) return;
    entries = ***dense_entries_;
  }
  for (size_t i = 0; i < writers_.size(); ++i) {
    const auto more =
        EntriesFromProto(replies_->replies[i].checkpoint_written());
    if (!more.ok()) {
      return Fail(Annotate(more.status(),
                           absl::StrCat("member '", writers_[i].name, "'")),
                  writers_[i]);
    }
    entries.insert(entries.end(), more->begin(), more->end());
  }
  commit_ = context_->OnDisk<std::string>(
      [job = context_->job, tokenizers = context_->tokenizers, step = step_,
       loss = validation_loss_, in_use = context_->env.checkpoints_in_use,
       claim = context_->claim, entries = std::move(entries)] {
        return CommitJobCheckpoint(job, tokenizers, step, entries, loss,
                                   in_use(), claim.get());
      });
}

bool CheckpointWrite::idle() const {
  const auto over = [](const auto& work) {
    return work == nullptr || work->has_value();
  };
  return over(dense_entries_) && over(commit_);
}

void CheckpointWrite::Drop() {
  Abandon();
  const bool ended = context_->AwaitEnd([&] { return idle(); });
  if (context_->mailbox->halted()) return;
  if (ended) {
    dense_->tensors.clear();
    if (has_all_shards()) Poll();
    if (done() && path_->ok()) return;
  }
  context_->abandoned_step = step_;
  context_->RemoveAbandoned();
}

}  // namespace gshard
