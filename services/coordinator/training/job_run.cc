#include "services/coordinator/training/job_run.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/coordinator/membership/training_memory.h"
#include "services/coordinator/preparation/job_preparation.h"
#include "services/coordinator/training/job_attempt.h"
#include "services/coordinator/training/job_context.h"
#include "services/coordinator/training/job_recovery.h"

namespace gshard {
namespace {

// The longest pause before a disk or store that is away is asked again.
constexpr absl::Duration kMaxReloadDelay = absl::Minutes(1);

class JobRun {
 public:
  explicit JobRun(JobContext* context)
      : context_(*context),
        budget_(context_.job.recovery.max_recoveries),
        workers_wanted_(context_.job.min_workers) {}
  ~JobRun() { stop_preparing_.request_stop(); }

  void Run();

 private:
  struct Session {
    SessionPlan plan;
    std::vector<Member> routers;
  };

  // The whole job except its end. OK if it is done.
  absl::Status Train();
  absl::Status Prepare();
  absl::StatusOr<std::shared_ptr<FolderClaim>> AwaitClaim(
      const JobIntent& intent);
  // Does `work` on the job's files; repeats it while their disk or store is
  // away, as often as recoveries are left.
  template <typename Result>
  absl::StatusOr<Result> AwaitFolder(
      const std::function<absl::StatusOr<Result>()>& work);
  // Determines where the next attempt starts.
  absl::Status FindStart();
  void StartFrom(ResumePoint point);
  // The job is trained: `last` has all of its steps.
  void OnTrained(const CheckpointReader& last);
  // Waits until enough members have joined, and plans their session.
  absl::StatusOr<Session> AwaitMembers();
  // The fewest with which an attempt may begin.
  size_t LeastRouters() const {
    return context_.begun ? 1 : context_.job.min_routers;
  }
  size_t LeastWorkers() const {
    return context_.begun ? 1 : context_.job.min_workers;
  }
  // `in_vain`: waiting for as many as before is over.
  bool Enough(size_t routers, size_t workers, bool in_vain) const;
  std::string Awaited(size_t routers, size_t workers, bool in_vain) const;
  // The plan of the next attempt, without workers that lack the memory if there
  // are enough others.
  absl::StatusOr<SessionPlan> Plan(const std::vector<Member>& workers,
                                   bool in_vain) const;
  // The attempt has ended with `cause`. OK if another one may begin.
  absl::Status Recover(const JobAttempt& attempt, const absl::Status& cause);
  // A loss after `step`; `away`: the job's disk or store is. OK if the job may
  // continue.
  absl::Status RecordLoss(int64_t step, const absl::Status& cause, bool away);
  // Releases the session of the previous attempt.
  absl::Status BeginAnother(JobAttempt* attempt, const absl::Status& cause);
  // Waits before another attempt, twice as long after each without a step.
  absl::Status PauseWhileAway(int64_t committed);
  // Sets how long the next attempt waits for as many members as before.
  void AwaitReplacements();
  absl::Status Serve();
  bool IsReleased() const {
    return released_ == nullptr || released_->missing == 0;
  }
  void End(absl::Status why);

  JobContext& context_;
  std::stop_source stop_preparing_;
  bool trained_ = false;  // here, or by an earlier coordinator
  std::shared_ptr<const MemberReplies> released_;  // of the last attempt
  bool gave_up_ = false;  // and trying again would not help
  RecoveryBudget budget_;
  int64_t away_at_ = -1;  // committed when the disk or store was away last
  absl::Duration away_delay_;
  TrainingStart start_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // to start from
  std::optional<int64_t> rollback_;       // the step to skip by going back
  Scrutiny scrutiny_ = Scrutiny::kQuick;  // for checkpoint_
  // Number of members that another attempt waits for, until a deadline.
  size_t routers_wanted_ = 1;
  size_t workers_wanted_;
  MonotonicTime wanted_until_ = MonotonicTime::InfinitePast();
  // Members of before a restart rejoin one by one, and how many they were is
  // not known: the first attempt waits until the deadline.
  bool rejoining_ = false;
};

void JobRun::Run() {
  LogInfo("job begins",
          {{"job", context_.job.name}, {"session", context_.session()}});
  const absl::Status status = Train();
  if (context_.mailbox->halted()) return;
  // The next job needs the memory of this one.
  while (!IsReleased() && !context_.mailbox->stopping()) {
    context_.mailbox->Next(MonotonicTime::InfiniteFuture());
    if (context_.mailbox->halted()) return;
  }
  if (context_.abandoned_step > 0) context_.RemoveAbandoned();
  if (context_.mailbox->halted()) return;
  stop_preparing_.request_stop();
  // A pending disk result may hold the folder, which must be free once the job
  // is known to be finished. What a disk that hangs still has to do is done
  // before any work of the next job.
  context_.mailbox->Close();
  End(status);
}

absl::Status JobRun::Train() {
  RETURN_IF_ERROR(Prepare());
  const bool serves = !context_.job.serve_as.empty();
  while (true) {
    if (trained_ && !serves) return absl::OkStatus();
    ASSIGN_OR_RETURN(Session session, AwaitMembers());
    rejoining_ = false;
    if (trained_) {
      const absl::Status served = Serve();
      if (!absl::IsUnavailable(served) || context_.stopped) return served;
      RETURN_IF_ERROR(RecordLoss(context_.job.steps, served, /*away=*/false));
      context_.stops_at_once = true;
      context_.SetState(v1::JOB_STATE_RECOVERING, served);
      // What has failed may have nothing to do with members, so that all of
      // them are there.
      RETURN_IF_ERROR(context_.Await([] { return false; },
                                     context_.env.clock() + kReloadDelay));
      AwaitReplacements();
      continue;
    }
    JobAttempt attempt(&context_, std::move(session.plan), start_,
                       session.routers);
    const absl::Status ended = attempt.Run(std::move(checkpoint_));
    if (context_.mailbox->halted()) return ended;
    const absl::Status next = ended.ok() ? ended : Recover(attempt, ended);
    if (!next.ok()) {
      released_ = attempt.Release();
      return next;
    }
    if (!ended.ok()) {
      RETURN_IF_ERROR(BeginAnother(&attempt, ended));
      continue;
    }
    released_ = attempt.Release(/*in_order=*/serves);
    // A last checkpoint can be written while members are away.
    trained_ = context_.begun = true;
  }
}

absl::Status JobRun::Prepare() {
  const JobSettings& settings = context_.settings;
  // Once all that it asks for have loaded it, not all need to come back. What
  // older releases have recorded says so only of a job that has made steps.
  const v1::JobProgress& before = context_.reporter.progress();
  context_.begun = settings.restored && (before.begun() || before.step() > 0);
  if (settings.reduce != ReduceWay::kCoordinator) {
    routers_wanted_ = context_.job.min_routers;
  }
  rejoining_ = context_.begun;
  context_.SetState(context_.waiting_state());
  // Prepare before waiting for members, which can do other work meanwhile.
  const JobIntent intent{
      .resume = settings.resume,
      .restored = settings.restored,
      .checkpoint_step = context_.reporter.progress().checkpoint_step()};
  ASSIGN_OR_RETURN(context_.claim, AwaitClaim(intent));
  ASSIGN_OR_RETURN(PreparedJob got,
                   AwaitFolder<PreparedJob>(
                       [job = context_.job, intent, claim = context_.claim,
                        stop = stop_preparing_.get_token()] {
                         return PrepareJob(job, intent, *claim, stop);
                       }));
  if (rejoining_) AwaitReplacements();
  context_.job = std::move(got.job);
  context_.tokenizers = std::move(got.tokenizers);
  context_.time_to_index = got.time_to_index;
  if (got.start.trained) {
    OnTrained(*got.start.checkpoint);
  } else {
    StartFrom(std::move(got.start));
  }
  return absl::OkStatus();
}

void JobRun::OnTrained(const CheckpointReader& last) {
  trained_ = context_.begun = true;
  context_.checkpoint_path = last.path();
  context_.reporter.OnCheckpoint(last.manifest().step, last.path());
  context_.reporter.Begin(last.manifest().step, context_.env.clock());
}

absl::StatusOr<std::shared_ptr<FolderClaim>> JobRun::AwaitClaim(
    const JobIntent& intent) {
  const MonotonicTime end = context_.env.clock() + kClaimWait;
  while (true) {
    auto claim = context_.AwaitDisk<std::shared_ptr<FolderClaim>>(
        [job = context_.job, intent, faults = context_.env.faults,
         stop = stop_preparing_.get_token()]()
            -> absl::StatusOr<std::shared_ptr<FolderClaim>> {
          // The job may have ended, and the folder be another's to claim.
          if (stop.stop_requested()) return absl::CancelledError("ended");
          return ClaimFolder(job, intent, faults);
        });
    const MonotonicTime now = context_.env.clock();
    if (!absl::IsUnavailable(claim.status()) || context_.stopped ||
        now >= end) {
      return claim;
    }
    context_.SetState(context_.waiting_state(),
                      Annotate(claim.status(), "waits"));
    RETURN_IF_ERROR(
        context_.Await([] { return false; }, now + absl::Seconds(1)));
  }
}

template <typename Result>
absl::StatusOr<Result> JobRun::AwaitFolder(
    const std::function<absl::StatusOr<Result>()>& work) {
  absl::Duration delay = kReloadDelay;
  while (true) {
    absl::StatusOr<Result> result = context_.AwaitDisk<Result>(work);
    if (!absl::IsUnavailable(result.status()) || context_.stopped) {
      return result;
    }
    RETURN_IF_ERROR(
        RecordLoss(context_.checkpoint_step, result.status(), /*away=*/true));
    context_.SetState(context_.waiting_state(), result.status());
    RETURN_IF_ERROR(
        context_.Await([] { return false; }, context_.env.clock() + delay));
    delay = std::min(2 * delay, kMaxReloadDelay);
  }
}

absl::Status JobRun::FindStart() {
  const bool back = rollback_.has_value();
  const int64_t base = back ? RollbackBase(context_.job, *rollback_ - 1) : 0;
  ASSIGN_OR_RETURN(
      ResumePoint point,
      AwaitFolder<ResumePoint>([job = context_.job, claim = context_.claim,
                                had = context_.checkpoint_step, back, base,
                                scrutiny = scrutiny_,
                                stop = stop_preparing_.get_token()] {
        return back ? FindRollbackPoint(job, base, *claim, scrutiny, stop)
                    : FindResumePoint(job, had, *claim, scrutiny, stop);
      }));
  if (point.trained) {
    OnTrained(*point.checkpoint);
    return absl::OkStatus();
  }
  const absl::Status lost = point.lost;
  StartFrom(std::move(point));
  if (!lost.ok()) {
    // No step is skipped until the job comes to the one that led back.
    context_.SetState(context_.waiting_state(), lost);
  } else if (back) {
    // All steps since the checkpoint are skipped.
    start_.skipped_steps = *rollback_ - start_.step;
    start_.step = *rollback_;
  }
  return absl::OkStatus();
}

void JobRun::StartFrom(ResumePoint point) {
  start_ = {.step = 0,
            .skipped_steps = 0,
            .checkpoint_directory = "",
            .weights_only = false,
            .tokenizer_directory = context_.tokenizers.directory};
  checkpoint_ = std::move(point.checkpoint);
  context_.checkpoint_step = 0;
  if (point.best.has_value()) {
    context_.reporter.FindBest(point.best->step, point.best->loss);
  }
  if (checkpoint_ != nullptr) {
    start_.checkpoint_directory = checkpoint_->path();
    start_.weights_only = point.weights_only;
  }
  if (checkpoint_ == nullptr || point.weights_only) {
    // Its checkpoints, if it had any, are lost.
    return context_.reporter.SetCheckpoint(0, "");
  }
  context_.checkpoint_path = checkpoint_->path();
  start_.step = context_.checkpoint_step = checkpoint_->manifest().step;
  context_.reporter.SetCheckpoint(start_.step, context_.checkpoint_path);
}

bool JobRun::Enough(size_t routers, size_t workers, bool in_vain) const {
  if (routers < LeastRouters() || workers < LeastWorkers()) return false;
  return in_vain || (!rejoining_ && workers >= workers_wanted_ &&
                     routers >= routers_wanted_);
}

std::string JobRun::Awaited(size_t routers, size_t workers,
                            bool in_vain) const {
  if (rejoining_ && routers >= 1 && workers >= 1) {
    return absl::StrCat("waits for members to rejoin: ", routers,
                        " routers and ", workers, " expert workers have");
  }
  const auto needed = [&](size_t least, size_t wanted) {
    return in_vain ? least : std::max(least, wanted);
  };
  return absl::StrCat("waits for members: ", routers, " routers (",
                      needed(LeastRouters(), routers_wanted_), " needed) and ",
                      workers, " expert workers (",
                      needed(LeastWorkers(), workers_wanted_),
                      " needed) are there");
}

absl::StatusOr<JobRun::Session> JobRun::AwaitMembers() {
  const TrainingJob& job = context_.job;
  while (true) {
    (void)context_.mailbox->TakeMembersChanged();
    const std::vector<Member> workers =
        context_.Usable(MemberRole::kExpertWorker);
    std::vector<Member> routers = context_.Usable(MemberRole::kRouter);
    // Once: whatever is done until the wait may take longer than that.
    const bool in_vain = context_.env.clock() >= wanted_until_;
    absl::Status why;
    if (!Enough(routers.size(), workers.size(), in_vain)) {
      why = absl::UnavailableError(
          Awaited(routers.size(), workers.size(), in_vain));
    } else if (trained_) {
      return Session();
    } else {
      // Workers with more memory may join; this process's memory is fixed.
      RETURN_IF_ERROR(LargestWindow(job, MemoryOfCoordinator(job),
                                    context_.DenseMemory(), "the coordinator")
                          .status());
      absl::StatusOr<SessionPlan> plan = Plan(workers, in_vain);
      if (plan.ok()) return Session{*std::move(plan), std::move(routers)};
      why = plan.status();
      if (!absl::IsResourceExhausted(why) || (in_vain && !context_.begun)) {
        return why;
      }
    }
    context_.SetState(context_.waiting_state(), why);
    RETURN_IF_ERROR(context_.Await(
        [&] { return context_.mailbox->TakeMembersChanged(); },
        in_vain ? MonotonicTime::InfiniteFuture() : wanted_until_));
  }
}

absl::StatusOr<SessionPlan> JobRun::Plan(const std::vector<Member>& workers,
                                         bool in_vain) const {
  const TrainingJob& job = context_.job;
  ASSIGN_OR_RETURN(
      const std::vector<Member> fit,
      WorkersWithMemory(job, workers,
                        in_vain ? LeastWorkers() : workers_wanted_));
  if (fit.size() < workers.size()) {
    LogWarning("workers have too little memory for the job",
               {{"job", job.name}, {"left_out", workers.size() - fit.size()}});
  }
  ASSIGN_OR_RETURN(
      SessionPlan plan,
      PlanTraining(context_.session(), job, start_, fit, context_.DenseMemory(),
                   context_.env.next_placement_version()));
  if (job.checkpoint.asynchronous && !plan.asynchronous_checkpoints) {
    LogWarning(
        "steps wait for checkpoints: a second copy of the parameters "
        "takes too much memory",
        {{"job", job.name}});
  }
  return plan;
}

absl::Status JobRun::Recover(const JobAttempt& attempt,
                             const absl::Status& cause) {
  if (context_.mailbox->cancelled() || context_.stopped) return cause;
  if (attempt.exit() != JobAttempt::Exit::kFailed) {
    // A job that is to stop needs no other attempt, so none is missing either.
    context_.stops_at_once = true;
    const absl::Status wanted = context_.CheckWanted();
    if (!wanted.ok() && attempt.committed() > context_.checkpoint_step) {
      LogWarning(
          "a job stops, and whoever continues it repeats its steps since the "
          "last checkpoint",
          {{"job", context_.job.name},
           {"step", attempt.committed()},
           {"checkpoint_step", context_.checkpoint_step},
           {"status", cause}});
    }
    RETURN_IF_ERROR(wanted);
  }
  if (attempt.trained()) {
    rollback_.reset();
    scrutiny_ = Scrutiny::kQuick;
  }
  switch (attempt.exit()) {
    case JobAttempt::Exit::kFailed:
      return cause;
    case JobAttempt::Exit::kLost:
      return RecordLoss(attempt.committed(), cause, /*away=*/false);
    case JobAttempt::Exit::kAway:
      return RecordLoss(attempt.committed(), cause, /*away=*/true);
    case JobAttempt::Exit::kDamaged:
      // The fault may be in the member's memory: nothing is set aside on its
      // report alone.
      if (scrutiny_ == Scrutiny::kFull) {
        return Annotate(cause, "the coordinator finds the checkpoint whole");
      }
      scrutiny_ = Scrutiny::kFull;
      break;
    case JobAttempt::Exit::kNotFinite:
      rollback_ = attempt.committed() + 1;
      break;
    case JobAttempt::Exit::kDeserted:
    case JobAttempt::Exit::kChanged:
      break;
  }
  return absl::OkStatus();
}

absl::Status JobRun::RecordLoss(int64_t step, const absl::Status& cause,
                                bool away) {
  const absl::Status lost = budget_.RecordLoss(step, cause);
  gave_up_ = !lost.ok() && !away;
  return lost;
}

absl::Status JobRun::BeginAnother(JobAttempt* attempt,
                                  const absl::Status& cause) {
  LogWarning("the job begins another attempt",
             {{"job", context_.job.name},
              {"attempt", context_.attempt + 1},
              {"status", cause}});
  workers_wanted_ = std::max<size_t>(attempt->num_workers(), 1);
  routers_wanted_ = std::max<size_t>(attempt->num_owners(), 1);
  released_ = attempt->Release();
  context_.begun = context_.begun || attempt->trained();
  ++context_.attempt;
  context_.SetState(v1::JOB_STATE_RECOVERING, cause);
  RETURN_IF_ERROR(context_.Await([&] { return IsReleased(); }));
  if (attempt->exit() == JobAttempt::Exit::kAway) {
    RETURN_IF_ERROR(PauseWhileAway(attempt->committed()));
  }
  AwaitReplacements();
  return FindStart();
}

absl::Status JobRun::PauseWhileAway(int64_t committed) {
  // What is away from a member may be there for the coordinator.
  if (committed > away_at_) away_delay_ = kReloadDelay;
  away_at_ = committed;
  const absl::Duration delay = away_delay_;
  away_delay_ = std::min(2 * delay, kMaxReloadDelay);
  return context_.Await([] { return false; }, context_.env.clock() + delay);
}

void JobRun::AwaitReplacements() {
  wanted_until_ = context_.env.clock() +
                  absl::Milliseconds(context_.job.recovery.replacement_wait_ms);
}

absl::Status JobRun::Serve() {
  // Its members need the memory that training had.
  RETURN_IF_ERROR(context_.Await([&] { return IsReleased(); }));
  context_.stops_at_once = false;
  const auto served = std::make_shared<std::optional<absl::Status>>();
  const auto done = [served,
                     mailbox = context_.mailbox](const absl::Status& status) {
    mailbox->Post([served, status] { *served = status; });
  };
  context_.env.serve(context_.checkpoint_path, done);
  const absl::Status wanted =
      context_.Await([&] { return served->has_value(); });
  if (context_.mailbox->cancelled() && !served->has_value()) {
    // It replaces no model, unless it already has.
    context_.env.give_up_serving(context_.checkpoint_path, done);
    while (!served->has_value() && !context_.mailbox->halted()) {
      context_.mailbox->Next(MonotonicTime::InfiniteFuture());
    }
  }
  if (!served->has_value()) return wanted;
  return Annotate(**served,
                  absl::StrCat("trained to ", context_.checkpoint_path,
                               ", but it cannot be served"));
}

void JobRun::End(absl::Status why) {
  v1::JobState state = v1::JOB_STATE_FAILED;
  if (why.ok()) {
    state = v1::JOB_STATE_SUCCEEDED;
  } else if (context_.mailbox->cancelled()) {
    state = v1::JOB_STATE_CANCELLED;
    why = absl::OkStatus();
  } else if (context_.stopped && context_.settings.durable) {
    state = v1::JOB_STATE_QUEUED;
  } else if (context_.stopped && trained_) {
    // Only the next coordinator could serve it, and will not know of it.
    state = v1::JOB_STATE_SUCCEEDED;
    why = absl::OkStatus();
  } else if (context_.stopped) {
    state = v1::JOB_STATE_CANCELLED;
    if (!context_.checkpoint_path.empty()) {
      why = absl::UnavailableError(absl::StrCat(
          why.message(), "; submit the job again with resume to go on from ",
          context_.checkpoint_path));
    }
  } else if (context_.claim != nullptr) {
    // A job that has lost its folder may fail due to its new owner's changes.
    // That it cannot be told, as from a store that is away, is no cause.
    const absl::Status owner = context_.claim->Check();
    if (absl::IsFailedPrecondition(owner)) why = owner;
  }
  const bool retryable = !gave_up_ && IsPassing(why) && !absl::IsNotFound(why);
  context_.claim = nullptr;  // as of Run()
  checkpoint_ = nullptr;
  const bool failed = state == v1::JOB_STATE_FAILED;
  Log(failed ? LogSeverity::kError : LogSeverity::kInfo,
      failed ? "job failed" : "job ends",
      {{"job", context_.job.name},
       {"state", v1::JobState_Name(state)},
       {"status", why},
       {"retryable", retryable ? "yes" : "no"},
       {"checkpoint", context_.checkpoint_path}});
  context_.SetState(state, why, retryable);
}

}  // namespace

void RunJob(const JobSettings& settings, const JobEnvironment& environment,
            const std::shared_ptr<JobMailbox>& mailbox, ProgressFeed* feed,
            JobStatus* status) {
  JobContext context(settings, environment, feed, mailbox, status);
  JobRun(&context).Run();
  mailbox->Close();
}

JobThread::JobThread(const JobSettings& settings,
                     const JobEnvironment& environment, ProgressFeed* feed,
                     std::function<void()> on_end)
    : mailbox_(std::make_shared<JobMailbox>(environment.clock)),
      thread_([this, settings, environment, feed, on_end] {
        BeNice(environment.niceness);
        RunJob(settings, environment, mailbox_, feed, &status_);
        on_end();
      }) {}

}  // namespace gshard
