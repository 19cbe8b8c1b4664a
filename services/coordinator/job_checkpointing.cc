// The checkpoints of a JobRunner, which are written while steps go on.
//
// Workers and the dense side take snapshots between two steps, and write them
// in the background. When all shards are in, the checkpoint is committed, also
// there. One is in flight at a time. What needs it waits: the next checkpoint,
// the end of the job, another placement of the experts, and going back to it.

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/write_shard.h"
#include "services/coordinator/job_runner.h"

namespace gshard {

void JobRunner::AfterCheckpoint(std::function<void()> next) {
  if (writing_ == nullptr) return next();
  LogInfo("steps wait for a checkpoint",
          {{"job", job_.name}, {"step", writing_->step}});
  phase_ = Phase::kCheckpointing;
  after_checkpoint_ = std::move(next);
}

template <typename Result>
void JobRunner::OnDisk(
    std::function<absl::StatusOr<Result>()> work,
    std::function<absl::Status(absl::StatusOr<Result>)> done) {
  env_.disk->Post([this, write = writing_, still = StillThisAttempt(),
                   claim = claim_, work = std::move(work),
                   done = std::move(done)]() mutable {
    if (write->abandoned) return;
    auto result = std::make_shared<absl::StatusOr<Result>>(work());
    // Whoever has lost the folder may fail by what its new owner does there.
    const absl::Status owner = result->ok() ? absl::OkStatus() : claim->Check();
    if (!owner.ok()) *result = owner;
    env_.queue->Post([this, write = std::move(write), still, result,
                      done = std::move(done)] {
      if (!still() || write != writing_) return;
      Do(Annotate(done(*std::move(result)),
                  absl::StrCat("checkpoint of step ", write->step)));
    });
  });
}

void JobRunner::WriteCheckpoint() {
  BeginCheckpoint(step_, /*lost=*/{},
                  OnQueue([this](const std::vector<v1::CommandReply>& replies) {
                    return Annotate(
                        OnShards(replies),
                        absl::StrCat("checkpoint of step ", writing_->step));
                  }));
  writing_->validation_loss = validation_loss_;
  const bool needed = last_step_ || stop_ || !job_.checkpoint.asynchronous ||
                      !MembersHaveJoined().empty();
  if (!needed) return BeginStep();
  AfterCheckpoint([this] { OnCheckpointDone(); });
}

void JobRunner::BeginCheckpoint(int64_t step, const std::set<size_t>& lost,
                                OnReplies on_shards) {
  writing_ = std::make_shared<CheckpointWrite>();
  writing_->step = step;
  v1::WriteCheckpoint write;
  write.set_session(session_);
  write.set_step(step);
  write.set_root(job_.checkpoint.directory);
  MemberCommands commands;
  for (size_t w = 0; w < plan_.workers.size(); ++w) {
    if (lost.count(w) > 0) continue;
    // A worker of an earlier attempt, or owner of the folder, may write still.
    write.set_shard(absl::StrCat(claim_->tag(), "-worker-", w, "-", attempt_));
    const size_t before = w > 0 ? w - 1 : plan_.workers.size() - 1;
    write.set_include_replica(lost.count(before) > 0);
    commands.emplace_back(plan_.workers[w], v1::Command());
    *commands.back().second.mutable_write_checkpoint() = write;
  }
  if (reduction_ != nullptr) {
    write.set_include_replica(false);
    write.set_shard(claim_->tag());
    Append(reduction_->Write(write, attempt_), &commands);
  }
  for (const auto& [member, command] : commands) {
    writing_->members.push_back(member.name);
  }
  if (dense_ != nullptr) WriteDense();
  FanOut(*env_.members, *env_.queue, std::move(commands),
         [this, still = StillThisAttempt(), writing = writing_,
          on_shards = std::move(on_shards)](
             absl::StatusOr<std::vector<v1::CommandReply>> replies) {
           // Or it was given up meanwhile.
           if (!still() || writing != writing_) return;
           if (replies.ok()) return on_shards(std::move(replies));
           OnDisk<bool>([why = replies.status()] { return why; },
                        [on_shards](const absl::StatusOr<bool>& failed) {
                          on_shards(failed.status());
                          return absl::OkStatus();
                        });
         });
}

void JobRunner::WriteDense() {
  writing_->dense = dense_->Snapshot();
  ++writing_->shards_missing;
  OnDisk<std::vector<TensorEntry>>(
      [write = writing_, root = job_.checkpoint.directory, claim = claim_] {
        return WriteShard(
            {.root = root,
             .step = write->step,
             .shard = absl::StrCat(claim->tag(), "-dense")},
            write->dense, [&] { return write->abandoned.load(); }, claim.get());
      },
      [this](absl::StatusOr<std::vector<TensorEntry>> entries) {
        writing_->dense.clear();
        RETURN_IF_ERROR(entries.status());
        OnShard(*std::move(entries));
        return absl::OkStatus();
      });
}

absl::Status JobRunner::OnShards(const std::vector<v1::CommandReply>& replies) {
  std::vector<TensorEntry> entries;
  for (size_t i = 0; i < replies.size(); ++i) {
    const auto more = EntriesFromProto(replies[i].checkpoint_written());
    RETURN_IF_ERROR(Annotate(
        more.status(), absl::StrCat("member '", writing_->members[i], "'")));
    entries.insert(entries.end(), more->begin(), more->end());
  }
  OnShard(std::move(entries));
  return absl::OkStatus();
}

void JobRunner::OnShard(std::vector<TensorEntry> entries) {
  writing_->entries.insert(writing_->entries.end(), entries.begin(),
                           entries.end());
  if (--writing_->shards_missing > 0) return;
  OnDisk<std::string>(
      [write = writing_, job = job_, tokenizers = tokenizers_,
       in_use = env_.checkpoints_in_use, claim = claim_] {
        auto path = CommitJobCheckpoint(
            job, tokenizers, write->step, std::move(write->entries),
            write->validation_loss, in_use(), claim.get());
        if (path.ok()) write->path = *path;
        return path;
      },
      [this](absl::StatusOr<std::string> path) {
        RETURN_IF_ERROR(path.status());
        OnCheckpointWritten();
        const auto next = std::exchange(after_checkpoint_, nullptr);
        if (next) next();
        return absl::OkStatus();
      });
}

void JobRunner::OnCheckpointWritten() {
  checkpoint_path_ = writing_->path;
  checkpoint_step_ = writing_->step;
  reporter_->OnCheckpoint(writing_->step, checkpoint_path_);
  env_.on_checkpoint(reporter_->progress());
  writing_ = nullptr;
}

void JobRunner::DropCheckpoint() {
  after_checkpoint_ = nullptr;
  if (writing_ == nullptr) return;
  // What has all shards is as good as done, and will be of use.
  writing_->abandoned = writing_->shards_missing > 0;
  // What is being written now ends with its tensor. Without the promise kept
  // the disk's thread is gone, and writes nothing either.
  auto idle = std::make_shared<std::promise<void>>();
  const std::future<void> is_idle = idle->get_future();
  env_.disk->Post([idle = std::move(idle)] { idle->set_value(); });
  is_idle.wait();
  if (!writing_->path.empty()) return OnCheckpointWritten();
  (void)AbandonCheckpoint(job_.checkpoint.directory, writing_->step,
                          claim_.get());
  writing_ = nullptr;
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
