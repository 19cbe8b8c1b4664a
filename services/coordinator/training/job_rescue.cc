// How a JobAttempt that ends between checkpoints saves what it has trained.
//
// Until its commit an open step leaves all parameters unchanged, and a commit
// starts only when all gradients are in place, so the workers can finish it. As
// long as no worker is lost they therefore have all state of the last committed
// step. So they do without a lost one if the job has buddies: the experts of
// each worker of the session are replicated on the next one, which makes the
// same updates, and whose gradients are in place as well. The checkpoint of
// that step is then an ordinary one, and the next attempt, or the next
// coordinator, starts from it: only the open step is lost. Each worker writes
// only if it has committed exactly this step.
//
// The last step is made again from the last checkpoint if it is still to be
// validated, so that its loss is known.

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

bool JobAttempt::HaveAllStateWithout(const std::set<size_t>& lost) const {
  return lost.empty() || (context_->job.recovery.buddies &&
                          BuddiesAreLeft(lost, num_workers()));
}

absl::Status JobAttempt::Rescue(const absl::Status& cause) {
  // Routers that own dense parameters have no buddies, and what ends an attempt
  // is usually that one of them is lost.
  if (dense_ == nullptr) return cause;
  // The one being written comes first, if all are there to finish it: there may
  // be no time for another.
  if (writing_ != nullptr && LostWorkers().empty()) {
    RETURN_IF_ERROR(FinishCheckpoint());
  }
  // A checkpoint with which the job is done records the result of the last
  // validation. An earlier validation is not worth the steps before it.
  if (validating_ && IsDone()) return cause;
  const std::set<size_t> lost = LostWorkers();
  if (!HaveAllStateWithout(lost)) return cause;
  // Even without all replies the commit counts as done.
  if (!counted_) {
    const bool over = CountStep(commit_.skip_update());
    if (IsDone() && ValidationDue(over)) return cause;
  }
  const absl::Status written = WriteRescue(lost, cause);
  if (!written.ok()) return written;
  // It was the last one, or the job is to stop.
  if (IsDone()) return absl::OkStatus();
  context_->stops_at_once = true;
  RETURN_IF_ERROR(context_->CheckWanted());
  return cause;
}

absl::Status JobAttempt::FinishCheckpoint() {
  RETURN_IF_ERROR(context_->Await([&] {
    writing_->Poll();
    return writing_->done();
  }));
  if (writing_->path().ok()) OnCheckpointWritten();
  return absl::OkStatus();
}

absl::Status JobAttempt::WriteRescue(std::set<size_t> lost,
                                     const absl::Status& cause) {
  while (true) {
    DropCheckpoint();
    if (committed_ == 0) return cause;
    if (committed_ == context_->checkpoint_step) return absl::OkStatus();
    LogWarning("what is needed to go on is written",
               {{"job", context_->job.name},
                {"step", committed_},
                {"lost", lost.size()},
                {"status", cause}});
    if (commit_.step() == committed_) {
      // Repeating it has no effect; sent before each one's next command.
      MemberCommands commits;
      for (size_t w = 0; w < num_workers(); ++w) {
        if (lost.count(w) > 0) continue;
        *AddCommand(commits, plan_.workers[w]).mutable_commit_step() = commit_;
      }
      Tell(*context_->env.members, std::move(commits));
    }
    BeginCheckpoint(committed_, lost);
    RETURN_IF_ERROR(FinishCheckpoint());
    if (writing_ == nullptr) return absl::OkStatus();
    const absl::Status failed = writing_->path().status();
    // The commit that seemed to fail was made.
    if (absl::IsAlreadyExists(failed)) return cause;
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
    if (now_lost.size() == lost.size() || !HaveAllStateWithout(now_lost)) {
      LogWarning("what was lost with workers is lost",
                 {{"job", context_->job.name}, {"status", failed}});
      return cause;
    }
    lost = now_lost;
  }
}

}  // namespace gshard
