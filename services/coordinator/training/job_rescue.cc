// How a JobAttempt with buddies saves the state of lost workers.
//
// The experts of each worker of the session are replicated on the next one,
// which makes the same updates. A commit starts only when all gradients,
// including the replicas', are in place, so the remaining workers can finish
// it; an open step is dropped. The checkpoint of the last committed step is
// then an ordinary one, and the next attempt starts from it: only the open step
// is lost. The last step is made again from the last checkpoint if it is still
// to be validated, so that its loss is known.

#include <optional>
#include <utility>

#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/training/job_attempt.h"
#include "services/coordinator/training/job_recovery.h"

namespace gshard {

std::set<size_t> JobAttempt::LostWorkers() const {
  const std::set<MemberKey> members = context_->Members();
  std::set<size_t> lost;
  for (size_t w = 0; w < plan_.workers.size(); ++w) {
    if (members.count(plan_.workers[w]) == 0) lost.insert(w);
  }
  return lost;
}

absl::Status JobAttempt::Rescue(const absl::Status& cause) {
  // Routers have no buddies, and the last checkpoint records the result of the
  // last validation. An earlier validation is not worth the steps before it.
  const bool no_use =
      plan_.workers.empty() || dense_ == nullptr || (validating_ && last_step_);
  const std::set<size_t> lost = LostWorkers();
  if (!context_->job.recovery.buddies || no_use ||
      !BuddiesAreLeft(lost, num_workers())) {
    return cause;
  }
  // Even without all replies the commit counts as done.
  if (!counted_) {
    const bool over = CountStep(commit_.skip_update());
    if (over && ValidationDue(over)) return cause;
  }
  const absl::Status written = WriteRescue(lost, cause);
  if (!written.ok()) return written;
  // It was the last one, or the job is to stop.
  if (IsDone()) return absl::OkStatus();
  context_->stops_at_once = true;
  RETURN_IF_ERROR(context_->CheckWanted());
  return cause;
}

absl::Status JobAttempt::WriteRescue(std::set<size_t> lost,
                                     const absl::Status& cause) {
  while (true) {
    DropCheckpoint();
    if (committed_ == context_->checkpoint_step || committed_ == 0) {
      return cause;
    }
    LogWarning("workers write what is needed to go on",
               {{"job", context_->job.name},
                {"step", committed_},
                {"lost", lost.size()},
                {"status", cause}});
    if (commit_.step() == committed_) {
      // Repeating it has no effect; sent before each one's next command.
      MemberCommands commits;
      for (size_t w = 0; w < num_workers(); ++w) {
        if (lost.count(w) > 0) continue;
        commits.emplace_back(plan_.workers[w], v1::Command());
        *commits.back().second.mutable_commit_step() = commit_;
      }
      Tell(*context_->env.members, std::move(commits));
    }
    BeginCheckpoint(committed_, lost);
    RETURN_IF_ERROR(context_->Await([&] {
      writing_->Poll();
      return writing_->done();
    }));
    const absl::Status failed = writing_->path().status();
    if (failed.ok()) {
      OnCheckpointWritten();
      return absl::OkStatus();
    }
    const std::optional<MemberKey> failing = writing_->failed_member();
    if (!failing.has_value()) return OnStorageFailed(failed);
    // Others were lost meanwhile, but perhaps none that are needed. The stream
    // of one may have ended while it is still listed as a member.
    std::set<size_t> now_lost = LostWorkers();
    now_lost.insert(lost.begin(), lost.end());
    for (size_t w = 0; w < num_workers(); ++w) {
      if (absl::IsUnavailable(failed) && plan_.workers[w] == *failing) {
        now_lost.insert(w);
      }
    }
    if (now_lost.size() == lost.size() ||
        !BuddiesAreLeft(now_lost, num_workers())) {
      LogWarning("what was lost with workers is lost",
                 {{"job", context_->job.name}, {"status", failed}});
      return cause;
    }
    lost = now_lost;
  }
}

}  // namespace gshard
