// How a JobRunner with buddies keeps what lost workers had.
//
// The experts of each worker of the session are replicated on the next one,
// which makes the same updates. A commit is begun when all gradients are where
// they are needed, replicas included, so it can be finished by those that are
// left; of an open step nothing is needed. The checkpoint of the last step
// committed then has what any checkpoint has, and the next attempt begins with
// it: what is lost is the open step.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/coordinator/job_runner.h"

namespace gshard {

std::set<size_t> JobRunner::LostWorkers() const {
  const std::vector<Member> members = env_.members->List();
  std::set<size_t> lost;
  for (size_t w = 0; w < plan_.workers.size(); ++w) {
    const bool there = std::any_of(
        members.begin(), members.end(),
        [&](const Member& m) { return KeyOf(m) == plan_.workers[w]; });
    if (!there) lost.insert(w);
  }
  return lost;
}

bool JobRunner::Rescue(const absl::Status& cause) {
  const size_t workers = plan_.workers.size();
  const bool trains =
      phase_ == Phase::kMicrobatches || phase_ == Phase::kPreparing ||
      phase_ == Phase::kCommitting || phase_ == Phase::kCheckpointing ||
      phase_ == Phase::kRescuing ||
      (phase_ == Phase::kValidating && !last_step_);
  if (!job_.recovery.buddies || !trains || workers == 0) return false;
  if (dense_ == nullptr) return false;  // routers have no buddies
  const std::set<size_t> lost = LostWorkers();
  for (const size_t w : lost) {
    if (lost.count((w + 1) % workers) > 0) return false;
  }
  // Without its answer the commit is as good as made; but the last checkpoint
  // tells what the last validation found.
  if (phase_ == Phase::kCommitting) {
    const bool over = CountStep(commit_.skip_update());
    if (over && ValidationDue(over)) return false;
  }
  DropCheckpoint();
  const int64_t step = dense_->step();
  if (step == checkpoint_step_ || step == 0) return false;
  LogWarning("workers write what is needed to go on", {{"job", job_.name},
                                                       {"step", step},
                                                       {"lost", lost.size()},
                                                       {"status", cause}});
  phase_ = Phase::kRescuing;
  microbatches_ = nullptr;
  lost_ = lost;
  if (commit_.session() == session_ && commit_.step() == step) {
    // Those that have made it do nothing; before the next command to each.
    MemberCommands commits;
    for (size_t w = 0; w < workers; ++w) {
      if (lost.count(w) > 0) continue;
      commits.emplace_back(plan_.workers[w], v1::Command());
      *commits.back().second.mutable_commit_step() = commit_;
    }
    Tell(*env_.members, std::move(commits));
  }
  BeginCheckpoint(
      step, lost,
      [this, cause](absl::StatusOr<std::vector<v1::CommandReply>> replies) {
        const absl::Status status =
            replies.ok() ? OnShards(*replies) : replies.status();
        if (!status.ok()) OnRescueFailed(cause, status);
      });
  after_checkpoint_ = [this, cause] {
    // It was the last one anyway, or the job is to stop.
    if (last_step_ || stop_) return OnCheckpointDone();
    BeginAttempt(cause);
  };
  return true;
}

void JobRunner::OnRescueFailed(const absl::Status& cause,
                               const absl::Status& status) {
  LogWarning("what was lost with workers is lost",
             {{"job", job_.name}, {"status", status}});
  // Others were lost meanwhile, but perhaps none that was needed.
  const bool worse = LostWorkers().size() > lost_.size();
  if (!worse || !Rescue(cause)) BeginAttempt(cause);
}

}  // namespace gshard
