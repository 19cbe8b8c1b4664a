// A step of a JobAttempt, from the first microbatch to the commit.

#include <algorithm>
#include <list>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/training/job_attempt.h"
#include "services/coordinator/training/job_recovery.h"
#include "services/rpc/client/tensor_transfer.h"

namespace gshard {
namespace {

constexpr absl::Duration kMicrobatchTimeout = absl::Minutes(10);

}  // namespace

absl::Status JobAttempt::MakeStep() {
  step_ = committed_ + 1;
  const Tracer& tracer = context_->env.members->tracer();
  OpenSpan span = tracer.Root(
      tracer.Sampled(StepTrace(context_->session(), step_)), "step");
  step_trace_ = span.context();
  span.Set("gshard.session", context_->session());
  span.Set("gshard.step", step_);
  const absl::Status made = RunPhases();
  span.End(made);
  return made;
}

absl::Status JobAttempt::RunPhases() {
  phase_began_ = context_->env.clock();
  const auto count = static_cast<int32_t>(context_->job.microbatches_per_step);
  if (dense_ != nullptr) dense_->BeginStep(count, plan_.microbatch_window);
  ASSIGN_OR_RETURN(const Ran ran,
                   RunMicrobatches(count, plan_.microbatch_window,
                                   /*validation=*/false));
  EndPhase("microbatches");
  result_ = {.statistics = ran.sums,
             .gradient_norm = 0.0,
             .learning_rate = schedule_.LearningRate(step_)};
  ASSIGN_OR_RETURN(std::vector<SquaredNorm> norms, Prepare(ran));
  ASSIGN_OR_RETURN(const std::optional<StepScale> scale,
                   Scale(std::move(norms), ran.sums));
  EndPhase("prepare");
  RETURN_IF_ERROR(Commit(scale));
  EndPhase("commit");
  return absl::OkStatus();
}

void JobAttempt::EndPhase(const char* phase) {
  const MonotonicTime now = context_->env.clock();
  context_->reporter.OnPhase(phase, now - phase_began_);
  phase_began_ = now;
}

absl::StatusOr<JobAttempt::Ran> JobAttempt::RunMicrobatches(int32_t count,
                                                            int32_t window,
                                                            bool validation) {
  MicrobatchSchedule schedule(count, window);
  OrderedStatistics statistics;
  Ran ran{.sums = {}, .attempts = {}, .by = std::vector<int32_t>(count, -1)};
  std::multimap<MonotonicTime, int32_t> retries;
  std::list<std::pair<Assignment, std::shared_ptr<const MemberReplies>>> given;
  const auto decided = [](const auto& one) { return one.second->decided(); };
  while (!schedule.complete()) {
    const std::vector<MemberKey> routers = routers_->ready();
    schedule.SetRouters(routers);
    for (const MonotonicTime now = context_->env.clock();
         !retries.empty() && retries.begin()->first <= now;
         retries.erase(retries.begin())) {
      schedule.Release(retries.begin()->second);
    }
    for (const Assignment& assignment : schedule.Assign()) {
      given.emplace_back(assignment, Assign(assignment, validation));
    }
    auto next = given.end();
    std::string hurry;
    bool given_up = false;
    RETURN_IF_ERROR(Await(
        [&] {
          next = std::find_if(given.begin(), given.end(), decided);
          if (routers_->ready().empty()) hurry = WhyHurry();
          given_up = validation && GivesUpValidation();
          return next != given.end() || routers_->ready() != routers ||
                 !hurry.empty() || given_up;
        },
        retries.empty() ? MonotonicTime::InfiniteFuture()
                        : retries.begin()->first));
    if (given_up) return ran;
    if (!hurry.empty()) {
      return Leave(Exit::kDeserted,
                   absl::UnavailableError(absl::StrCat(
                       "no router is left for step ", step_, ", and ", hurry)));
    }
    if (next == given.end()) continue;
    const auto [assignment, answer] = *next;
    given.erase(next);
    if (!answer->error.ok()) {
      // A lost router or worker is detected here first.
      RETURN_IF_ERROR(CheckMembers());
      schedule.SetRouters(routers_->ready());
    }
    if (!schedule.IsCurrent(assignment)) continue;
    if (!answer->error.ok()) {
      ASSIGN_OR_RETURN(
          const MonotonicTime again,
          OnMicrobatchFailed(assignment, answer->error, &schedule));
      retries.emplace(again, assignment.microbatch);
      continue;
    }
    ASSIGN_OR_RETURN(StepStatistics one,
                     StatisticsOf(assignment, validation,
                                  answer->replies[0].microbatch_done()));
    // All have the model's layers and experts.
    CHECK(statistics.Add(assignment.microbatch, std::move(one)).ok());
    if (reduction_ != nullptr) {
      ran.by[assignment.microbatch] = *reduction_->RankOf(assignment.router);
    }
    schedule.Finish(assignment);
  }
  ran.sums = statistics.sums();
  ran.attempts = schedule.attempts();
  return ran;
}

std::string JobAttempt::WhyHurry() const {
  if (context_->mailbox->stopping()) return "the job is to stop";
  const std::string leaving = LeavingHolder();
  if (leaving.empty()) return "";
  return absl::StrCat("expert worker '", leaving, "' wants to leave");
}

std::shared_ptr<const MemberReplies> JobAttempt::Assign(
    const Assignment& assignment, bool validation) {
  if (assignment.attempt > 0) context_->reporter.OnRetry();
  if (!validation && dense_ != nullptr) {
    dense_->Expect(assignment.microbatch, assignment.attempt);
  }
  MemberCommands commands;
  v1::AssignMicrobatch* const assign =
      AddCommand(commands, assignment.router).mutable_assign_microbatch();
  assign->set_session(context_->session());
  assign->set_step(step_);
  assign->set_microbatch(assignment.microbatch);
  assign->set_attempt(assignment.attempt);
  assign->set_parameter_version(committed_);
  assign->set_validation(validation);
  assign->set_timeout_ms(absl::ToInt64Milliseconds(kMicrobatchTimeout));
  return context_->Send(std::move(commands));
}

absl::StatusOr<StepStatistics> JobAttempt::StatisticsOf(
    const Assignment& assignment, bool validation,
    const v1::MicrobatchDone& done) const {
  const ModelConfig& model = context_->job.model;
  const std::string where =
      absl::StrCat("router '", assignment.router.name, "', step ", step_,
                   ", microbatch ", assignment.microbatch);
  absl::StatusOr<StepStatistics> statistics = StatisticsFromProto(
      done.stats(), MoeLayerNames(model).size(), model.experts);
  RETURN_IF_ERROR(Annotate(statistics.status(), where));
  if (!validation && dense_ != nullptr &&
      !dense_->HasGradients(assignment.microbatch)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a reply came, but no gradients"));
  }
  return statistics;
}

absl::StatusOr<MonotonicTime> JobAttempt::OnMicrobatchFailed(
    const Assignment& assignment, const absl::Status& status,
    MicrobatchSchedule* schedule) {
  const absl::Status described = Annotate(
      status,
      absl::StrCat("step ", step_, ", microbatch ", assignment.microbatch));
  LogWarning("microbatch failed",
             {{"job", context_->job.name}, {"status", described}});
  if (!IsPassing(status)) return described;
  // If memory is short, later ones yield to the oldest, as often as necessary.
  const bool makes_way =
      (absl::IsAborted(status) || absl::IsResourceExhausted(status)) &&
      assignment.microbatch > schedule->oldest();
  if (makes_way) {
    schedule->Preempted(assignment);
  } else if (const int32_t failures = schedule->Failed(assignment);
             failures >= kMaxMicrobatchFailures) {
    return Leave(
        Exit::kLost,
        Annotate(described, absl::StrCat("failed ", failures, " times")));
  }
  return context_->env.clock() +
         RetryDelay(context_->settings.retry_delay, assignment.attempt + 1);
}

absl::StatusOr<std::vector<SquaredNorm>> JobAttempt::Prepare(const Ran& ran) {
  v1::PrepareStep prepare;
  prepare.set_session(context_->session());
  prepare.set_step(step_);
  prepare.mutable_attempts()->Add(ran.attempts.begin(), ran.attempts.end());
  // Workers answer once their buddies have the gradients.
  const absl::Duration push =
      plan_.pushed_bytes == 0
          ? absl::ZeroDuration()
          : absl::FromChrono(PushTimeout(plan_.pushed_bytes));
  const auto replies =
      context_->Send(PrepareCommands(holders_, prepare, ran.by), push);
  std::vector<SquaredNorm> norms;
  // Meanwhile, the dense side.
  if (dense_ != nullptr) {
    ASSIGN_OR_RETURN(norms, dense_->Prepare(ran.attempts));
  }
  ASSIGN_OR_RETURN(const std::vector<v1::CommandReply> prepared,
                   AwaitAll(replies));
  RETURN_IF_ERROR(AddNorms(holders_, step_, prepared, &norms));
  return norms;
}

absl::StatusOr<std::optional<StepScale>> JobAttempt::Scale(
    std::vector<SquaredNorm> norms, const StepStatistics& sums) {
  const TrainingJob& job = context_->job;
  absl::Status finite = CheckFinite(job.model, step_, sums.loss_sum, norms);
  if (finite.ok()) {
    const absl::StatusOr<StepScale> scale = ScaleStep(
        TotalSquaredNorm(std::move(norms)), sums.target_tokens, job.clip_norm);
    finite = Annotate(scale.status(), absl::StrCat("step ", step_, " (loss ",
                                                   sums.loss(), ")"));
    if (!absl::IsOutOfRange(finite)) {
      context_->nonfinite_in_a_row = 0;
      RETURN_IF_ERROR(finite);
      return *scale;
    }
  }
  if (job.on_nonfinite == OnNonfinite::kStop) {
    return Annotate(finite,
                    "stopped; lower the learning rate, or set on_nonfinite");
  }
  const int64_t in_a_row = context_->nonfinite_in_a_row++;
  if (in_a_row >= job.recovery.max_recoveries) {
    return Annotate(finite, absl::StrCat("gave up after ", in_a_row,
                                         " such steps in a row"));
  }
  context_->reporter.OnNonfinite(finite);
  if (job.on_nonfinite == OnNonfinite::kSkip) return std::nullopt;
  // The checkpoint being written may be the rollback target.
  RETURN_IF_ERROR(AwaitCheckpoint());
  return Leave(Exit::kNotFinite, finite);
}

absl::Status JobAttempt::Commit(const std::optional<StepScale>& scale) {
  if (scale.has_value()) result_.gradient_norm = scale->gradient_norm;
  const double gradient_scale = scale.has_value() ? scale->gradient_scale : 0.0;
  commit_.set_session(context_->session());
  commit_.set_step(step_);
  commit_.set_gradient_scale(gradient_scale);
  commit_.set_learning_rate(result_.learning_rate);
  commit_.set_skip_update(!scale.has_value());
  counted_ = false;
  const auto replies = context_->Send(CommitCommands(holders_, commit_));
  if (dense_ != nullptr) {
    // Meanwhile, the dense side. With that the step can be finished by others.
    RETURN_IF_ERROR(dense_->Commit(gradient_scale, result_.learning_rate,
                                   /*skip=*/!scale.has_value()));
    committed_ = step_;
  }
  RETURN_IF_ERROR(AwaitAll(replies).status());
  committed_ = step_;
  return absl::OkStatus();
}

}  // namespace gshard
