// How a JobRunner takes up its work again: in another attempt, from a
// checkpoint.
//
// Every step is a function of the job and of the step before, so what is made
// again has the same bits, on whatever members. An attempt is a session of its
// own. Before the next one loads, members drop the last one's, for there may
// not be memory for both.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/coordinator/job_runner.h"
#include "services/coordinator/slow_work.h"

namespace gshard {

void JobRunner::Recover(const absl::Status& cause) {
  if (halted_) return;
  // Nobody is needed any more for the last checkpoint.
  if (last_step_ && writing_ != nullptr && writing_->step == step_ &&
      writing_->shards_missing == 0) {
    return;
  }
  const int64_t made = CommittedStep();
  if (made > best_step_) {
    best_step_ = made;
    recoveries_ = 0;
  }
  if (++recoveries_ > job_.recovery.max_recoveries) {
    return Fail(
        Annotate(cause, absl::StrCat("gave up after ", recoveries_ - 1,
                                     " recoveries without a step further")),
        /*retryable=*/false);
  }
  if (!Rescue(cause)) BeginAttempt(cause);
}

void JobRunner::RollBack(const absl::Status& cause) {
  const int64_t base = RollbackBase(job_, step_ - 1);
  rollback_ = {
      .step = step_,
      .skipped_steps = step_ - base,
      .checkpoint_directory =
          base == 0 ? "" : CheckpointPath(job_.checkpoint.directory, base),
      .tokenizer_directory = tokenizers_.directory};
  BeginAttempt(cause);
}

std::string JobRunner::MembersHaveJoined() const {
  const size_t routers = env_.members->List(MemberRole::kRouter).size();
  if (reduction_ != nullptr && routers > reduction_->routers().size()) {
    return absl::StrCat("routers have joined: ", routers, " instead of ",
                        reduction_->routers().size());
  }
  const std::vector<Member> workers =
      env_.members->List(MemberRole::kExpertWorker);
  const size_t held = plan_.workers.size();
  if (workers.size() <= held ||
      static_cast<int64_t>(held) >= job_.model.experts)
    return "";
  // A small worker must not stop a job that runs.
  const auto plan = PlanTraining(session_, job_, start_, workers, DenseBytes(),
                                 plan_.placement().version());
  if (!plan.ok()) {
    LogWarning("workers that joined are of no use to the job",
               {{"job", job_.name}, {"status", plan.status()}});
    return "";
  }
  return absl::StrCat("expert workers have joined: ", workers.size(),
                      " instead of ", held);
}

bool JobRunner::Rebalance() {
  const std::string joined = MembersHaveJoined();
  if (joined.empty()) return false;
  BeginAttempt(absl::AbortedError(joined));
  return true;
}

void JobRunner::BeginAttempt(const absl::Status& cause) {
  LogWarning(
      "the job begins another attempt",
      {{"job", job_.name}, {"attempt", attempt_ + 1}, {"status", cause}});
  DropCheckpoint();
  MemberCommands abort = Abort();
  workers_wanted_ = std::max<size_t>(plan_.workers.size(), 1);
  routers_wanted_ = reduction_ == nullptr ? 1 : reduction_->routers().size();
  Forget();
  phase_ = Phase::kReleasing;
  ++attempt_;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    session_ = absl::StrCat(job_.name, "/", attempt_);
  }
  SetState(v1::JOB_STATE_RECOVERING, cause);
  Settle(*env_.members, *env_.queue, std::move(abort),
         [this, still = StillThisAttempt()] {
           if (still()) OnReleased();
         });
}

void JobRunner::OnReleased() {
  if (phase_ != Phase::kReleasing) return;
  phase_ = Phase::kWaiting;
  AwaitWorkers(workers_wanted_);
  FindStart();
}

void JobRunner::AwaitWorkers(size_t wanted) {
  again_ = true;
  workers_wanted_ = wanted;
  wanted_in_vain_ = false;
  env_.queue->PostAfter(absl::Milliseconds(job_.recovery.replacement_wait_ms),
                        [this, still = StillThisAttempt()] {
                          if (!still()) return;
                          wanted_in_vain_ = true;
                          TryLoad();
                        });
}

void JobRunner::FindStart() {
  prepared_ = false;
  const bool back = rollback_.has_value();
  const int64_t base = back ? rollback_->step - rollback_->skipped_steps : 0;
  DoSlowWork<ResumePoint>(
      *env_.disk, *env_.queue, stop_preparing_.get_token(),
      [job = job_, claim = claim_, back, base](std::stop_token stop) {
        if (!back) return FindResumePoint(job, *claim, stop);
        return FindRollbackPoint(job, base, *claim, stop);
      },
      [this, still = StillThisAttempt()](absl::StatusOr<ResumePoint> point) {
        if (!still()) return;
        if (!point.ok()) return Do(point.status());
        OnStartFound(*std::move(point));
      });
}

void JobRunner::OnStartFound(ResumePoint point) {
  // It is made again from an earlier one, and so is all that follows.
  if (point.lost) {
    rollback_.reset();
    return FindStart();
  }
  StartFrom(std::move(point));
  if (rollback_.has_value()) start_ = *rollback_;
  prepared_ = true;
  TryLoad();
}

}  // namespace gshard
