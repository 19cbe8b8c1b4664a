// The work of a JobAttempt between steps: counting, validation and checkpoints.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/membership/training_memory.h"
#include "services/coordinator/training/job_attempt.h"
#include "services/train/job_options.h"

namespace gshard {

absl::Status JobAttempt::Train() {
  const JobMailbox& mailbox = *context_->mailbox;
  Publish();
  context_->reporter.Begin(committed_, context_->env.clock());
  context_->SetState(v1::JOB_STATE_RUNNING);
  // The work after a step also follows the last skipped one.
  bool left_out = start_.skipped_steps > 0;
  while (true) {
    if (!left_out) RETURN_IF_ERROR(MakeStep());
    const bool over = CountStep(left_out || commit_.skip_update());
    left_out = false;
    if (ValidationDue(over)) RETURN_IF_ERROR(Validate());
    last_step_ = last_step_ || mailbox.stopping();
    if (!last_step_ && !CheckpointDue() && LeavingHolder().empty()) continue;
    RETURN_IF_ERROR(AwaitCheckpoint());  // one at a time
    BeginCheckpoint(step_);
    const bool needed = last_step_ || mailbox.stopping() ||
                        !plan_.asynchronous_checkpoints ||
                        !MembersHaveChanged().empty();
    if (!needed) continue;
    RETURN_IF_ERROR(AwaitCheckpoint());
    if (IsDone()) return absl::OkStatus();
    RETURN_IF_ERROR(AtCheckpoint());
  }
}

bool JobAttempt::CountStep(bool skipped) {
  counted_ = true;
  const MonotonicTime now = context_->env.clock();
  const TrainingJob& job = context_->job;
  const bool out_of_time = job.time_limit_seconds > 0 &&
                           context_->reporter.Elapsed(now) >=
                               static_cast<double>(job.time_limit_seconds);
  if (out_of_time && step_ < job.steps) EndHere();
  const bool over = step_ >= job.steps;
  last_step_ = over || context_->mailbox->stopping();
  if (skipped) {
    context_->reporter.OnSkipped(step_, now);
  } else {
    context_->reporter.OnStep(step_, result_, now, last_step_,
                              step_trace_.sampled_id());
  }
  if (!over) PlanLastStep(now);
  return over;
}

void JobAttempt::EndHere() {
  TrainingJob& job = context_->job;
  // The cooldown as far as it has come: a step that is made again keeps its
  // rate, or about that if it is one of the cooldown.
  int64_t& cooldown = job.schedule.cooldown_steps;
  cooldown = std::max<int64_t>(0, cooldown - (job.steps - step_));
  job.steps = step_;
  context_->reporter.SetTotalSteps(job.steps, cooldown);
  LogInfo("the time is up", {{"job", job.name}, {"step", step_}});
}

void JobAttempt::PlanLastStep(MonotonicTime now) {
  TrainingJob& job = context_->job;
  const int64_t cooldown = job.schedule.cooldown_steps;
  if (job.time_limit_seconds == 0 || cooldown == 0 ||
      job.steps - step_ <= cooldown) {
    return;
  }
  // An attempt's first steps are slower than those that follow.
  if (step_ - start_.step < std::min<int64_t>(cooldown, 20)) return;
  const double limit = static_cast<double>(job.time_limit_seconds);
  const double left = limit - context_->reporter.Elapsed(now);
  if (left > limit / 2) return;
  const std::optional<int64_t> fit = context_->reporter.StepsIn(left);
  if (!fit.has_value() || *fit > cooldown) return;
  job.schedule.cooldown_steps = std::max<int64_t>(1, *fit);
  job.steps = step_ + job.schedule.cooldown_steps;
  schedule_ = MakeSchedule(job);
  context_->reporter.SetTotalSteps(job.steps, job.schedule.cooldown_steps);
  LogInfo("the time left is for the cooldown",
          {{"job", job.name}, {"step", step_}, {"steps", job.steps}});
}

bool JobAttempt::CheckpointDue() const {
  const int64_t every = context_->job.checkpoint.every_steps;
  return every > 0 && step_ % every == 0;
}

bool JobAttempt::ValidationDue(bool over) const {
  if (!context_->text.has_value() ||
      context_->text->validation_microbatches() < 1 || GivesUpValidation()) {
    return false;
  }
  const int64_t every = context_->job.validation.every_steps;
  return over || CheckpointDue() || (every > 0 && step_ % every == 0);
}

bool JobAttempt::GivesUpValidation() const {
  return step_ < context_->job.steps && !WhyHurry().empty();
}

absl::Status JobAttempt::Validate() {
  const MonotonicTime began = context_->env.clock();
  const int32_t count = context_->text->validation_microbatches();
  validating_ = true;
  // Sums are added only when all are complete.
  ASSIGN_OR_RETURN(const Ran ran,
                   RunMicrobatches(count, count, /*validation=*/true));
  validating_ = false;
  if (GivesUpValidation()) return absl::OkStatus();
  validated_step_ = step_;
  validation_loss_.reset();
  // Losses that are not finite cannot be ordered.
  if (std::isfinite(ran.sums.loss())) {
    validation_loss_ = ran.sums.loss();
  } else {
    LogWarning("the loss on the held-out text is not finite",
               {{"job", context_->job.name}, {"step", step_}});
  }
  context_->reporter.OnValidation(step_, ran.sums, began,
                                  context_->env.clock());
  return absl::OkStatus();
}

void JobAttempt::BeginCheckpoint(int64_t step, const std::set<size_t>& lost) {
  v1::WriteCheckpoint write;
  write.set_session(context_->session());
  write.set_step(step);
  write.set_root(context_->job.checkpoint.directory);
  std::optional<std::vector<NamedTensor>> dense;
  if (dense_ != nullptr) dense = dense_->Snapshot();
  writing_ = std::make_unique<CheckpointWrite>(
      context_, step, step == validated_step_ ? validation_loss_ : std::nullopt,
      WriteCommands(holders_, write, context_->claim->tag(), context_->attempt,
                    lost),
      std::move(dense));
}

absl::Status JobAttempt::AwaitCheckpoint() {
  if (writing_ == nullptr) return absl::OkStatus();
  LogInfo("steps wait for a checkpoint",
          {{"job", context_->job.name}, {"step", writing_->step()}});
  phase_began_ = context_->env.clock();
  RETURN_IF_ERROR(Await([&] { return writing_ == nullptr; }));
  EndPhase("checkpoint");
  return absl::OkStatus();
}

void JobAttempt::OnCheckpointWritten() {
  context_->checkpoint_path = *writing_->path();
  context_->checkpoint_step = writing_->step();
  writing_ = nullptr;
  context_->reporter.OnCheckpoint(context_->checkpoint_step,
                                  context_->checkpoint_path);
  context_->env.on_checkpoint(context_->reporter.progress());
}

void JobAttempt::DropCheckpoint() {
  if (writing_ == nullptr) return;
  writing_->Drop();
  if (writing_->done() && writing_->path().ok()) OnCheckpointWritten();
  writing_ = nullptr;
}

bool JobAttempt::IsDone() const {
  return last_step_ &&
         (!context_->mailbox->stopping() || step_ >= context_->job.steps);
}

absl::Status JobAttempt::AtCheckpoint() {
  context_->stops_at_once = true;
  RETURN_IF_ERROR(context_->CheckWanted());
  context_->stops_at_once = false;
  const std::string changed = MembersHaveChanged();
  if (changed.empty()) return absl::OkStatus();
  return Leave(Exit::kChanged, absl::AbortedError(changed));
}

std::string JobAttempt::LeavingHolder() const {
  for (const Member& member :
       context_->env.members->List(MemberRole::kExpertWorker)) {
    const auto is_it = [&](const ShardHolder& holder) {
      return holder.member == KeyOf(member);
    };
    if (member.leaving &&
        std::any_of(holders_.begin(), holders_.end(), is_it)) {
      return member.info.id;
    }
  }
  return "";
}

std::string JobAttempt::MembersHaveChanged() const {
  if (const std::string leaving = LeavingHolder(); !leaving.empty()) {
    return absl::StrCat("expert worker '", leaving, "' wants to leave");
  }
  const size_t routers = context_->Usable(MemberRole::kRouter).size();
  if (reduction_ != nullptr && routers > num_owners()) {
    return absl::StrCat("routers have joined: ", routers, " instead of ",
                        num_owners());
  }
  const std::vector<Member> workers =
      context_->Usable(MemberRole::kExpertWorker);
  const size_t held = num_workers();
  if (workers.size() <= held ||
      static_cast<int64_t>(held) >= context_->job.model.experts) {
    return "";
  }
  // A worker with little memory must not stop a running job.
  const absl::StatusOr<std::vector<Member>> fit =
      WorkersWithMemory(context_->job, workers, held + 1);
  if (!fit.ok()) {
    LogWarning("workers that joined are of no use to the job",
               {{"job", context_->job.name}, {"status", fit.status()}});
    return "";
  }
  return absl::StrCat("expert workers have joined: ", fit->size(),
                      " instead of ", held);
}

}  // namespace gshard
