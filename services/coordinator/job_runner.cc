#include "services/coordinator/job_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/slow_work.h"
#include "services/coordinator/training_memory.h"
#include "services/train/job_options.h"

namespace gshard {
bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status) || absl::IsAborted(status) ||
         absl::IsCancelled(status) || absl::IsNotFound(status);
}

JobRunner::JobRunner(JobSettings settings, JobEnvironment environment,
                     ProgressFeed* feed)
    : settings_(std::move(settings)),
      env_(std::move(environment)),
      job_(settings_.job),
      schedule_(MakeSchedule(job_.schedule)),
      reporter_(std::make_unique<JobReporter>(job_, env_.metrics, feed)),
      attempt_(settings_.attempt),
      session_(absl::StrCat(job_.name, "/", attempt_)) {}

std::function<bool()> JobRunner::StillThisAttempt() const {
  return [this, attempt = attempt_, held = held_] {
    return phase_ != Phase::kEnded && attempt == attempt_ && !halted_;
  };
}

bool JobRunner::idle() const {
  if (!ended() || held_.use_count() > 1) return false;
  // Others let go on their threads: what they did comes before this.
  std::shared_ptr<const bool>(held_).reset();
  return true;
}

OnReplies JobRunner::OnQueue(
    std::function<absl::Status(std::vector<v1::CommandReply>)> step) {
  return [this, step = std::move(step), still = StillThisAttempt()](
             absl::StatusOr<std::vector<v1::CommandReply>> replies) {
    // What was begun before workers were lost is for nothing by then.
    if (!still() || phase_ == Phase::kRescuing) return;
    if (replies.ok()) return Do(step(*std::move(replies)));
    OnMemberFailed(replies.status());
  };
}

void JobRunner::OnMemberFailed(const absl::Status& status) {
  const auto still = StillThisAttempt();
  ReconcileMembers();  // has a better word for a worker that was lost
  if (!still()) return;
  // A member that is short of memory or disk will be so again.
  if (IsPassing(status) && !absl::IsResourceExhausted(status)) {
    return Recover(status);
  }
  Do(status);
}

void JobRunner::Do(const absl::Status& status) {
  if (status.ok() || phase_ == Phase::kEnded) return;
  Finish(v1::JOB_STATE_FAILED, status);
}

void JobRunner::SetState(v1::JobState state, const absl::Status& status,
                         bool retryable) {
  const v1::JobProgress& progress = reporter_->progress();
  const bool changed =
      progress.state() != state || progress.attempt() != attempt_;
  if (progress.attempt() != attempt_) reporter_->OnAttempt(attempt_);
  reporter_->SetState(state, status, retryable);
  // What people are told, a restart must not have forgotten.
  if (changed) env_.on_change(reporter_->progress());
  reporter_->Publish();
}

MemberCommands JobRunner::ForWorkers(
    const std::function<void(size_t w, v1::Command*)>& fill) const {
  MemberCommands commands;
  for (size_t w = 0; w < plan_.workers.size(); ++w) {
    commands.emplace_back(plan_.workers[w], v1::Command());
    fill(w, &commands.back().second);
  }
  return commands;
}

void JobRunner::Start() {
  if (phase_ == Phase::kEnded) return;  // cancelled while it was queued
  LogInfo("job begins", {{"job", job_.name}, {"session", session_}});
  SetState(settings_.restored ? v1::JOB_STATE_RECOVERING
                              : v1::JOB_STATE_WAITING);
  // Not all that were there need to come back.
  if (settings_.restored) {
    if (settings_.reduce != ReduceWay::kCoordinator) {
      routers_wanted_ = job_.min_routers;
    }
    AwaitWorkers(job_.min_workers);
  }
  const auto on_wait = [this, still = StillThisAttempt()](absl::Status why) {
    env_.queue->Post([this, still, why = std::move(why)] {
      if (!still()) return;
      SetState(v1::JOB_STATE_RECOVERING,
               absl::UnavailableError(absl::StrCat("waits: ", why.message())));
    });
  };
  // Members that wait are better used than a tokenizer that waits for them.
  DoSlowWork<PreparedJob>(
      *env_.disk, *env_.queue, stop_preparing_.get_token(),
      [job = job_, faults = env_.faults,
       intent = JobIntent{.resume = settings_.resume,
                          .restored = settings_.restored,
                          .on_wait = on_wait}](std::stop_token stop) {
        return PrepareJob(job, intent, stop, faults);
      },
      [this, still = StillThisAttempt()](absl::StatusOr<PreparedJob> prepared) {
        if (!still()) return;
        if (!prepared.ok()) return Do(prepared.status());
        OnJobPrepared(*std::move(prepared));
      });
}

void JobRunner::OnJobPrepared(PreparedJob prepared) {
  claim_ = std::move(prepared.claim);
  job_ = std::move(prepared.job);
  tokenizers_ = std::move(prepared.tokenizers);
  time_to_index_ = prepared.time_to_index;
  prepared_ = true;
  trained_ = prepared.trained;
  if (!trained_) {
    StartFrom(std::move(prepared.start));
    return TryLoad();
  }
  step_ = prepared.start.checkpoint->manifest().step;
  checkpoint_path_ = prepared.start.checkpoint->path();
  reporter_->OnCheckpoint(step_, checkpoint_path_);
  reporter_->Begin(step_, env_.clock());
  if (job_.serve_as.empty()) return Serve();
  TryLoad();
}

void JobRunner::StartFrom(ResumePoint point) {
  start_ = {.step = 0,
            .skipped_steps = 0,
            .checkpoint_directory = "",
            .tokenizer_directory = tokenizers_.directory};
  checkpoint_ = std::move(point.checkpoint);
  checkpoint_step_ = 0;
  if (point.best.has_value()) {
    reporter_->FindBest(point.best->step, point.best->loss);
  }
  if (checkpoint_ == nullptr) return;
  start_.step = checkpoint_->manifest().step;
  start_.checkpoint_directory = checkpoint_path_ = checkpoint_->path();
  checkpoint_step_ = start_.step;
}

void JobRunner::OnMembersChanged() {
  if (phase_ == Phase::kWaiting) return TryLoad();
  if (phase_ != Phase::kEnded) ReconcileMembers();
}

bool JobRunner::EnoughMembers() const {
  const size_t workers = env_.members->List(MemberRole::kExpertWorker).size();
  const size_t routers = env_.members->List(MemberRole::kRouter).size();
  if (again_) {
    return routers >= 1 && workers >= 1 &&
           ((workers >= workers_wanted_ && routers >= routers_wanted_) ||
            wanted_in_vain_);
  }
  return static_cast<int64_t>(workers) >= job_.min_workers &&
         static_cast<int64_t>(routers) >= job_.min_routers;
}

void JobRunner::TryLoad() {
  if (phase_ != Phase::kWaiting || !prepared_) return;
  const std::vector<Member> workers =
      env_.members->List(MemberRole::kExpertWorker);
  if (!EnoughMembers()) {
    const size_t routers = env_.members->List(MemberRole::kRouter).size();
    return SetState(
        again_ ? v1::JOB_STATE_RECOVERING : v1::JOB_STATE_WAITING,
        absl::UnavailableError(absl::StrCat(
            "waits for members: ", routers, " of ",
            again_ ? 1 : job_.min_routers, " routers and ", workers.size(),
            " of ", again_ ? workers_wanted_ : job_.min_workers,
            " expert workers are there")));
  }
  if (trained_) return Serve();
  // Workers may come that have more memory; this process has what it has.
  Do(LargestWindow(job_, MemoryOfCoordinator(job_), DenseBytes(),
                   "the coordinator")
         .status());
  if (phase_ != Phase::kWaiting) return;
  const absl::Status loaded = LoadWorkers(workers);
  if (again_ && absl::IsResourceExhausted(loaded) &&
      phase_ == Phase::kWaiting) {
    // The workers that are left are too small: wait for more of them.
    return SetState(v1::JOB_STATE_RECOVERING, loaded);
  }
  Do(loaded);
}

int64_t JobRunner::DenseBytes() const {
  return settings_.reduce == ReduceWay::kCoordinator ? env_.memory_bytes : 0;
}

absl::Status JobRunner::LoadWorkers(const std::vector<Member>& workers) {
  ASSIGN_OR_RETURN(SessionPlan plan,
                   PlanTraining(session_, job_, start_, workers, DenseBytes(),
                                env_.next_placement_version()));
  if (settings_.reduce != ReduceWay::kCoordinator) {
    std::vector<MemberKey> routers;
    for (const Member& member : env_.members->List(MemberRole::kRouter)) {
      routers.push_back(KeyOf(member));
    }
    if (routers.empty()) {
      return absl::UnavailableError("the last router was lost");
    }
    reduction_ = std::make_unique<DenseReduction>(settings_.reduce, job_,
                                                  start_, std::move(routers),
                                                  settings_.reduce_timeout);
  }
  phase_ = Phase::kLoadingWorkers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    plan_ = std::move(plan);
    loaded_ = v1::SessionInfo::LOADING;
  }
  FanOut(*env_.members, *env_.queue,
         ForWorkers([&](size_t w, v1::Command* command) {
           command->mutable_load_session()->Swap(&plan_.worker_loads[w]);
         }),
         OnQueue([this](const std::vector<v1::CommandReply>&) {
           phase_ = Phase::kLoadingRouters;
           LoadRouters();
           return absl::OkStatus();
         }));
  // Meanwhile, the dense side.
  plan_.worker_loads.clear();
  if (reduction_ != nullptr) {
    checkpoint_ = nullptr;
    return absl::OkStatus();
  }
  auto store = std::make_unique<ParameterStore>(
      ParametersOf(job_.model, /*per_expert=*/false), std::vector<int32_t>(),
      MakeOptimizer(job_.optimizer));
  if (checkpoint_ == nullptr) {
    RETURN_IF_ERROR(store->Initialize(job_.seed));
  } else {
    RETURN_IF_ERROR(store->Load(*checkpoint_));
  }
  checkpoint_ = nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  dense_ = std::make_shared<DenseParameters>(session_, std::move(store),
                                             start_.step, env_.sums);
  return absl::OkStatus();
}

void JobRunner::LoadRouters() {
  for (const Member& member : env_.members->List(MemberRole::kRouter)) {
    const MemberKey key = KeyOf(member);
    std::optional<int> rank;
    if (reduction_ != nullptr) {
      rank = reduction_->RankOf(key);
      if (!rank.has_value()) continue;  // joined later
    }
    if (!routers_.emplace(key, RouterState::kLoading).second) continue;
    v1::Command command;
    *command.mutable_load_session() = plan_.router_load;
    if (rank.has_value()) {
      *command.mutable_load_session()->mutable_router()->mutable_dense_group() =
          reduction_->GroupOf(*rank);
    }
    env_.members->Send(
        key, std::move(command),
        [this, key,
         still = StillThisAttempt()](absl::StatusOr<v1::CommandReply> reply) {
          env_.queue->Post([this, key, still, reply = std::move(reply)] {
            if (still()) OnRouterLoaded(key, reply);
          });
        },
        time_to_index_);
  }
}

void JobRunner::OnRouterLoaded(const MemberKey& router,
                               const absl::StatusOr<v1::CommandReply>& reply) {
  const auto found = routers_.find(router);
  if (found == routers_.end()) return;
  if (absl::IsUnavailable(reply.status())) {  // lost, or leaving
    if (reduction_ != nullptr) return OnMemberFailed(reply.status());
    routers_.erase(found);
    LogWarning("a router has not loaded the job; it is asked again if it stays",
               {{"job", job_.name}, {"status", reply.status()}});
    env_.queue->PostAfter(settings_.reload_delay,
                          [this, still = StillThisAttempt()] {
                            if (still()) ReconcileMembers();
                          });
    return;
  }
  if (absl::IsUnimplemented(reply.status()) && reduction_ == nullptr) {
    LogError("a router cannot take part in a job",
             {{"job", job_.name}, {"status", reply.status()}});
    found->second = RouterState::kLeftOut;  // until it is replaced
    if (phase_ != Phase::kLoadingRouters) return;
    return SetState(
        again_ ? v1::JOB_STATE_RECOVERING : v1::JOB_STATE_WAITING,
        Annotate(reply.status(), absl::StrCat("waits for other routers than '",
                                              router.name, "'")));
  }
  if (!reply.ok()) return Do(reply.status());
  const absl::Status read = OnTextLoaded(router, reply->session_loaded());
  if (!read.ok()) return Do(read);
  found->second = RouterState::kReady;
  size_t ready = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ready_routers_.push_back(router.name);
    ready = ready_routers_.size();
  }
  if (reduction_ != nullptr) {
    Do(reduction_->OnLoaded(*reduction_->RankOf(router),
                            reply->session_loaded()));
    if (reduction_ != nullptr && reduction_->all_loaded()) ConnectRouters();
    return;
  }
  if (phase_ == Phase::kLoadingRouters) {
    if (!again_ && static_cast<int64_t>(ready) < job_.min_routers) return;
    BeginTraining();
  } else if (RunsMicrobatches()) {
    microbatches_->AddRouter(router);
    Dispatch();
  }
}

void JobRunner::ConnectRouters() {
  FanOut(*env_.members, *env_.queue, reduction_->Connect(session_),
         OnQueue([this](const std::vector<v1::CommandReply>&) {
           BeginTraining();
           return absl::OkStatus();
         }));
}

int64_t JobRunner::CommittedStep() const {
  if (reduction_ != nullptr) return reduction_->step();
  return dense_ == nullptr ? -1 : dense_->step();
}

void JobRunner::BeginTraining() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    loaded_ = v1::SessionInfo::READY;
  }
  const MonotonicTime now = env_.clock();
  reporter_->Begin(CommittedStep(), now);
  SetState(v1::JOB_STATE_RUNNING);
  rollback_.reset();
  if (start_.skipped_steps == 0) return BeginStep();
  // What follows a step follows the last one that was left out.
  step_ = start_.step;
  validation_loss_.reset();
  Do(OnCommitted(/*skipped=*/true));
}

void JobRunner::ReconcileMembers() {
  // Serving looks after its members itself; those that release their sessions
  // are heard of by their replies.
  // And what the rescuers write is what there will be.
  if (phase_ == Phase::kServing || phase_ == Phase::kReleasing ||
      phase_ == Phase::kRescuing) {
    return;
  }
  const std::vector<Member> members = env_.members->List();
  const auto is_there = [&](const MemberKey& key) {
    return std::any_of(members.begin(), members.end(),
                       [&](const Member& m) { return KeyOf(m) == key; });
  };
  for (const MemberKey& worker : plan_.workers) {
    if (is_there(worker)) continue;
    return Recover(absl::UnavailableError(
        absl::StrCat("expert worker '", worker.name,
                     "' was lost with its experts at step ", step_)));
  }
  if (reduction_ != nullptr) {
    for (const MemberKey& router : reduction_->routers()) {
      if (is_there(router)) continue;
      return Recover(absl::UnavailableError(absl::StrCat(
          "router '", router.name,
          "' was lost with its dense parameters at step ", step_)));
    }
  }
  for (auto it = routers_.begin(); it != routers_.end();) {
    if (is_there(it->first)) {
      ++it;
      continue;
    }
    LogWarning("a router of the job was lost",
               {{"job", job_.name}, {"router", it->first.name}});
    if (microbatches_ != nullptr) microbatches_->RemoveRouter(it->first);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::erase(ready_routers_, it->first.name);
    }
    it = routers_.erase(it);
  }
  if (phase_ == Phase::kWaiting || phase_ == Phase::kLoadingWorkers) return;
  LoadRouters();
  if (RunsMicrobatches()) Dispatch();
}

std::shared_ptr<DenseParameters> JobRunner::dense() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return dense_;
}

std::optional<v1::SessionInfo> JobRunner::Describe() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!loaded_.has_value()) return std::nullopt;
  v1::SessionInfo info;
  info.set_session(session_);
  info.set_training(true);
  info.set_state(*loaded_);
  *info.mutable_placement() = plan_.placement();
  for (const std::string& router : ready_routers_) info.add_routers(router);
  info.set_checkpoint_directory(start_.checkpoint_directory);
  info.set_reduce(std::string(ReduceWayName(settings_.reduce)));
  return info;
}

}  // namespace gshard
