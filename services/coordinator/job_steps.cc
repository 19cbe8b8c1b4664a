// The steps of a JobRunner, from the first microbatch to the commit.

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/job_runner.h"

namespace gshard {

void JobRunner::BeginStep() {
  const int32_t count = static_cast<int32_t>(job_.microbatches_per_step);
  if (phase_ == Phase::kCheckpointing) EndPhase("checkpoint");
  phase_began_ = env_.clock();
  step_ = CommittedStep() + 1;
  result_ = {};
  validation_loss_.reset();
  if (reduction_ != nullptr) {
    reduction_->BeginStep(count);
  } else {
    dense_->BeginStep(count, plan_.microbatch_window);
  }
  BeginMicrobatches(Phase::kMicrobatches, count);
}

void JobRunner::BeginMicrobatches(Phase phase, int32_t count) {
  phase_ = phase;
  // Validation adds up numbers only, when all are there.
  const int32_t window =
      phase == Phase::kValidating ? count : plan_.microbatch_window;
  microbatches_ = std::make_unique<MicrobatchSchedule>(count, window);
  statistics_.assign(count, StepStatistics());
  for (const auto& [router, state] : routers_) {
    if (state == RouterState::kReady) microbatches_->AddRouter(router);
  }
  Dispatch();
}

void JobRunner::EndPhase(const char* phase) {
  const MonotonicTime now = env_.clock();
  reporter_->OnPhase(phase, now - phase_began_);
  phase_began_ = now;
}

void JobRunner::Dispatch() {
  const bool validation = phase_ == Phase::kValidating;
  for (const Assignment& assignment : microbatches_->Assign()) {
    if (assignment.attempt > 0) reporter_->OnRetry();
    if (!validation && dense_ != nullptr) {
      dense_->Expect(assignment.microbatch, assignment.attempt);
    }
    v1::Command command;
    v1::AssignMicrobatch* const assign = command.mutable_assign_microbatch();
    assign->set_session(session_);
    assign->set_step(step_);
    assign->set_microbatch(assignment.microbatch);
    assign->set_attempt(assignment.attempt);
    assign->set_parameter_version(CommittedStep());
    assign->set_validation(validation);
    assign->set_timeout_ms(
        absl::ToInt64Milliseconds(settings_.microbatch_timeout));
    env_.members->Send(
        assignment.router, std::move(command),
        [this, assignment, step = step_, phase = phase_,
         still = StillThisAttempt()](absl::StatusOr<v1::CommandReply> reply) {
          env_.queue->Post(
              [this, assignment, step, phase, still, reply = std::move(reply)] {
                if (still() && step == step_ && phase == phase_) {
                  OnMicrobatch(assignment, reply);
                }
              });
        });
  }
}

void JobRunner::OnMicrobatch(const Assignment& assignment,
                             const absl::StatusOr<v1::CommandReply>& reply) {
  if (!microbatches_->IsCurrent(assignment)) return;
  if (!reply.ok()) return OnMicrobatchFailed(assignment, reply.status());
  Do(OnMicrobatchDone(assignment, *reply));
}

absl::Status JobRunner::OnMicrobatchDone(const Assignment& assignment,
                                         const v1::CommandReply& reply) {
  const std::string where =
      absl::StrCat("router '", assignment.router.name, "', step ", step_,
                   ", microbatch ", assignment.microbatch);
  absl::StatusOr<StepStatistics> statistics =
      StatisticsFromProto(reply.microbatch_done().stats(),
                          MoeLayerNames(job_.model).size(), job_.model.experts);
  RETURN_IF_ERROR(Annotate(statistics.status(), where));
  if (phase_ == Phase::kMicrobatches && reduction_ != nullptr) {
    reduction_->OnRun(assignment.microbatch,
                      *reduction_->RankOf(assignment.router));
  } else if (phase_ == Phase::kMicrobatches &&
             !dense_->HasGradients(assignment.microbatch)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a reply came, but no gradients"));
  }
  statistics_[assignment.microbatch] = *std::move(statistics);
  microbatches_->Finish(assignment);
  if (!microbatches_->complete()) {
    Dispatch();
  } else if (phase_ == Phase::kValidating) {
    return OnValidated();
  } else {
    PrepareStep();
  }
  return absl::OkStatus();
}

void JobRunner::OnMicrobatchFailed(const Assignment& assignment,
                                   const absl::Status& status) {
  const absl::Status described = Annotate(
      status,
      absl::StrCat("step ", step_, ", microbatch ", assignment.microbatch));
  LogWarning("microbatch failed", {{"job", job_.name}, {"status", described}});
  // A router or worker that is gone shows here first.
  const auto still = StillThisAttempt();
  ReconcileMembers();
  if (!still() || !RunsMicrobatches() ||
      !microbatches_->IsCurrent(assignment)) {
    return;
  }
  if (!IsPassing(status)) return Do(described);
  // Where there is not memory for all, later ones make way for the oldest, as
  // often as that takes.
  const bool makes_way =
      (absl::IsAborted(status) || absl::IsResourceExhausted(status)) &&
      assignment.microbatch > microbatches_->oldest();
  if (makes_way) {
    microbatches_->MadeWay(assignment);
  } else if (const int32_t failures = microbatches_->Failed(assignment);
             failures >= settings_.max_attempts) {
    return Recover(
        Annotate(described, absl::StrCat("failed ", failures, " times")));
  }
  const int32_t attempts = assignment.attempt + 1;
  const absl::Duration delay =
      settings_.retry_delay *
      (int64_t{1} << std::min(attempts, settings_.max_attempts) >> 1);
  env_.queue->PostAfter(delay, [this, still, step = step_, phase = phase_,
                                index = assignment.microbatch] {
    if (!still() || phase != phase_ || step != step_) return;
    microbatches_->Release(index);
    Dispatch();
  });
  Dispatch();
}

void JobRunner::PrepareStep() {
  EndPhase("microbatches");
  phase_ = Phase::kPreparing;
  const std::vector<int32_t> attempts = microbatches_->attempts();
  v1::PrepareStep prepare;
  prepare.set_session(session_);
  prepare.set_step(step_);
  prepare.mutable_attempts()->Add(attempts.begin(), attempts.end());
  MemberCommands commands = ForWorkers([&](size_t, v1::Command* command) {
    *command->mutable_prepare_step() = prepare;
  });
  if (reduction_ != nullptr) Append(reduction_->Prepare(prepare), &commands);
  FanOut(*env_.members, *env_.queue, std::move(commands),
         OnQueue([this](const std::vector<v1::CommandReply>& replies) {
           return OnPrepared(replies);
         }));
  // Meanwhile, the dense side.
  dense_norms_.clear();
  if (dense_ != nullptr) {
    gradients_ = dense_->TakeGradients();
    dense_norms_ = dense_->SquaredNorms(gradients_);
  }
  for (const StepStatistics& statistics : statistics_) {
    // All have the model's layers and experts.
    CHECK(result_.statistics.Merge(statistics).ok());
  }
}

absl::Status JobRunner::AddWorkerNorms(
    absl::Span<const v1::CommandReply> replies,
    std::vector<SquaredNorm>* norms) const {
  const std::vector<ParameterSpec> specs =
      ParametersOf(job_.model, /*per_expert=*/true);
  for (size_t w = 0; w < replies.size(); ++w) {
    std::map<std::string, double> values;
    for (const v1::GradientNorm& norm : replies[w].step_prepared().norms()) {
      values.emplace(norm.tensor(), norm.squared_norm());
    }
    size_t found = 0;
    for (const ParameterSpec& spec : specs) {
      for (const int32_t e : plan_.placement().workers(w).experts()) {
        const auto value = values.find(ExpertTensorName(spec.name, e));
        if (value == values.end()) continue;
        norms->push_back({value->first, value->second});
        ++found;
      }
    }
    const size_t expected =
        specs.size() * plan_.placement().workers(w).experts_size();
    const size_t got = replies[w].step_prepared().norms_size();
    if (found != expected || got != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expert worker '", plan_.workers[w].name, "', step ", step_,
          ": expected norms of ", expected, " tensors, got ", got, " of which ",
          found, " are its own"));
    }
  }
  return absl::OkStatus();
}

absl::Status JobRunner::CheckFinite(
    const std::vector<SquaredNorm>& norms) const {
  const double loss = result_.statistics.loss_sum;
  std::set<absl::string_view> bad;
  for (const SquaredNorm& norm : norms) {
    if (!std::isfinite(norm.value)) bad.insert(norm.tensor);
  }
  if (std::isfinite(loss) && bad.empty()) return absl::OkStatus();
  // The first in the order of the model, whoever holds it.
  std::string first;
  for (const ParameterSpec& spec : ModelParameters(job_.model)) {
    for (int64_t e = 0; e < (spec.per_expert ? spec.dims[0] : 1); ++e) {
      const std::string name =
          spec.per_expert ? ExpertTensorName(spec.name, e) : spec.name;
      if (first.empty() && bad.count(name) > 0) first = name;
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "step ", step_, ": ",
      std::isfinite(loss) ? "" : absl::StrCat("the loss is ", loss, "; "),
      bad.empty() ? "all gradients are finite"
                  : absl::StrCat("the gradient of ", first,
                                 " is not finite, the first of ", bad.size())));
}

absl::Status JobRunner::OnNotFinite(const absl::Status& what) {
  if (job_.on_nonfinite == OnNonfinite::kStop) {
    return Annotate(what,
                    "stopped; lower the learning rate, or set on_nonfinite");
  }
  if (++nonfinite_in_a_row_ > job_.recovery.max_recoveries) {
    return Annotate(what,
                    absl::StrCat("gave up after ", nonfinite_in_a_row_ - 1,
                                 " such steps in a row"));
  }
  reporter_->OnNonfinite(what);
  if (job_.on_nonfinite == OnNonfinite::kSkip) {
    Commit(nullptr);
  } else {
    AfterCheckpoint([this, what] { RollBack(what); });
  }
  return absl::OkStatus();
}

absl::Status JobRunner::OnPrepared(
    const std::vector<v1::CommandReply>& replies) {
  std::vector<SquaredNorm> norms = std::move(dense_norms_);
  const absl::Span<const v1::CommandReply> all = replies;
  const size_t workers = plan_.workers.size();
  if (reduction_ != nullptr) {
    RETURN_IF_ERROR(reduction_->AddNorms(all.subspan(workers), &norms));
  }
  RETURN_IF_ERROR(AddWorkerNorms(all.subspan(0, workers), &norms));
  const absl::Status finite = CheckFinite(norms);
  if (!finite.ok()) return OnNotFinite(finite);
  nonfinite_in_a_row_ = 0;
  const StepStatistics& statistics = result_.statistics;
  const absl::StatusOr<StepScale> scale =
      ScaleStep(TotalSquaredNorm(std::move(norms)), statistics.target_tokens,
                job_.clip_norm);
  RETURN_IF_ERROR(Annotate(
      scale.status(),
      absl::StrCat("step ", step_, " (loss ", statistics.loss(), ")")));
  Commit(&*scale);
  return absl::OkStatus();
}

void JobRunner::Commit(const StepScale* scale) {
  EndPhase("prepare");
  const bool skip = scale == nullptr;
  result_.gradient_norm = skip ? 0.0 : scale->gradient_norm;
  result_.learning_rate = schedule_.LearningRate(step_);
  phase_ = Phase::kCommitting;
  commit_.set_session(session_);
  commit_.set_step(step_);
  commit_.set_gradient_scale(skip ? 0.0 : scale->gradient_scale);
  commit_.set_learning_rate(result_.learning_rate);
  commit_.set_skip_update(skip);
  MemberCommands commands = ForWorkers([&](size_t, v1::Command* command) {
    *command->mutable_commit_step() = commit_;
  });
  if (reduction_ != nullptr) Append(reduction_->Commit(commit_), &commands);
  FanOut(*env_.members, *env_.queue, std::move(commands),
         OnQueue([this, skip](const std::vector<v1::CommandReply>&) {
           EndPhase("commit");
           if (reduction_ != nullptr) reduction_->OnCommitted();
           return OnCommitted(skip);
         }));
  if (dense_ == nullptr) return;
  if (skip) {
    dense_->SkipUpdate();
  } else {
    dense_->Update(gradients_, scale->gradient_scale, result_.learning_rate);
  }
  gradients_.clear();
}

bool JobRunner::CountStep(bool skipped) {
  const MonotonicTime now = env_.clock();
  const bool out_of_time =
      job_.time_limit_seconds > 0 &&
      reporter_->Elapsed(now) >= static_cast<double>(job_.time_limit_seconds);
  const bool over = step_ >= job_.steps || out_of_time;
  last_step_ = over || stop_;
  if (skipped) {
    reporter_->OnSkipped(step_);
  } else {
    reporter_->OnStep(step_, result_, now, last_step_);
  }
  return over;
}

absl::Status JobRunner::OnCommitted(bool skipped) {
  if (ValidationDue(CountStep(skipped))) {
    BeginValidation();
  } else {
    AfterStep();
  }
  return absl::OkStatus();
}

bool JobRunner::CheckpointDue() const {
  return job_.checkpoint.every_steps > 0 &&
         step_ % job_.checkpoint.every_steps == 0;
}

void JobRunner::AfterStep() {
  last_step_ = last_step_ || stop_;  // asked for during validation
  if (last_step_ || CheckpointDue()) {
    AfterCheckpoint([this] { WriteCheckpoint(); });
  } else {
    BeginStep();
  }
}

}  // namespace gshard
