#include "services/coordinator/job_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"

namespace gshard {
namespace {

v1::JobProgress FirstProgress(const TrainingJob& job) {
  v1::JobProgress progress;
  progress.set_job(job.name);
  progress.set_state(v1::JOB_STATE_WAITING);
  progress.set_total_steps(job.steps);
  progress.set_eta_seconds(-1);
  return progress;
}

}  // namespace

JobRunner::JobRunner(JobSettings settings, JobEnvironment environment)
    : settings_(std::move(settings)),
      env_(std::move(environment)),
      job_(settings_.job),
      session_(absl::StrCat(job_.name, "/", settings_.attempt)),
      schedule_(MakeSchedule(job_.schedule)),
      feed_(FirstProgress(job_)),
      reporter_(std::make_unique<JobReporter>(job_, env_.metrics, &feed_)) {}

OnReplies JobRunner::OnQueue(
    std::function<absl::Status(std::vector<v1::CommandReply>)> step) {
  return [this, step = std::move(step)](
             absl::StatusOr<std::vector<v1::CommandReply>> replies) {
    if (phase_ == Phase::kOver) return;
    if (replies.ok()) return Do(step(*std::move(replies)));
    ReconcileMembers();  // has a better word for a worker that was lost
    Do(replies.status());
  };
}

void JobRunner::Do(const absl::Status& status) {
  if (status.ok() || phase_ == Phase::kOver) return;
  Finish(v1::JOB_STATE_FAILED, status);
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
  LogInfo("job accepted", {{"job", job_.name}, {"session", session_}});
  reporter_->SetState(v1::JOB_STATE_WAITING);
  // Members that wait are better used than a tokenizer that waits for them.
  Do(Prepare());
  TryLoad();
}

absl::Status JobRunner::Prepare() {
  if (settings_.resume) {
    ASSIGN_OR_RETURN(checkpoint_, OpenToResume(job_));
  }
  ASSIGN_OR_RETURN(tokenizers_, PrepareTokenizers(&job_, checkpoint_.get()));
  RETURN_IF_ERROR(ValidateTrainingJob(job_));
  start_.tokenizer_directory = tokenizers_.directory;
  if (checkpoint_ != nullptr) {
    RETURN_IF_ERROR(CheckResumable(job_, *checkpoint_));
    start_.step = checkpoint_->manifest().step;
    start_.checkpoint_directory = checkpoint_path_ = checkpoint_->path();
  }
  prepared_ = true;
  return absl::OkStatus();
}

void JobRunner::OnMembersChanged() {
  if (phase_ == Phase::kWaiting) return TryLoad();
  if (phase_ != Phase::kOver) ReconcileMembers();
}

void JobRunner::TryLoad() {
  if (phase_ != Phase::kWaiting || !prepared_) return;
  const std::vector<Member> workers =
      env_.members->List(MemberRole::kExpertWorker);
  const size_t routers = env_.members->List(MemberRole::kRouter).size();
  if (static_cast<int64_t>(workers.size()) < job_.min_workers ||
      static_cast<int64_t>(routers) < job_.min_routers) {
    return reporter_->SetState(
        v1::JOB_STATE_WAITING,
        absl::UnavailableError(absl::StrCat(
            "waits for members: ", routers, " of ", job_.min_routers,
            " routers and ", workers.size(), " of ", job_.min_workers,
            " expert workers are there")));
  }
  Do(LoadWorkers(workers));
}

absl::Status JobRunner::LoadWorkers(const std::vector<Member>& workers) {
  ASSIGN_OR_RETURN(SessionPlan plan,
                   PlanTraining(session_, job_, start_, workers,
                                env_.next_placement_version()));
  auto store = std::make_unique<ParameterStore>(
      ParametersOf(job_.model, /*per_expert=*/false), std::vector<int32_t>(),
      MakeOptimizer(job_.optimizer));
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
  if (checkpoint_ == nullptr) {
    RETURN_IF_ERROR(store->Initialize(job_.seed));
  } else {
    RETURN_IF_ERROR(store->Load(*checkpoint_));
    checkpoint_ = nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  dense_ = std::make_shared<DenseParameters>(session_, std::move(store),
                                             start_.step);
  return absl::OkStatus();
}

void JobRunner::LoadRouters() {
  for (const Member& member : env_.members->List(MemberRole::kRouter)) {
    const MemberKey key = KeyOf(member);
    if (!routers_.emplace(key, RouterState::kLoading).second) continue;
    v1::Command command;
    *command.mutable_load_session() = plan_.router_load;
    env_.members->Send(
        key, std::move(command),
        [this, key](absl::StatusOr<v1::CommandReply> reply) {
          env_.queue->Post([this, key, reply = std::move(reply)] {
            OnRouterLoaded(key, reply);
          });
        });
  }
}

void JobRunner::OnRouterLoaded(const MemberKey& router,
                               const absl::StatusOr<v1::CommandReply>& reply) {
  const auto found = routers_.find(router);
  if (phase_ == Phase::kOver || found == routers_.end()) return;
  if (absl::IsUnavailable(reply.status())) {  // lost, or leaving
    routers_.erase(found);
    return;
  }
  if (!reply.ok()) return Do(reply.status());
  found->second = RouterState::kReady;
  size_t ready = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ready_routers_.push_back(router.name);
    ready = ready_routers_.size();
  }
  if (phase_ == Phase::kLoadingRouters) {
    if (static_cast<int64_t>(ready) < job_.min_routers) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      loaded_ = v1::SessionInfo::READY;
    }
    first_step_time_ = env_.clock();
    reporter_->Begin(dense_->step(), first_step_time_);
    reporter_->SetState(v1::JOB_STATE_RUNNING);
    BeginStep();
  } else if (phase_ == Phase::kMicrobatches) {
    microbatches_->AddRouter(router);
    Dispatch();
  }
}

void JobRunner::ReconcileMembers() {
  // Serving looks after its members itself.
  if (phase_ == Phase::kServing) return;
  const std::vector<Member> members = env_.members->List();
  const auto is_there = [&](const MemberKey& key) {
    return std::any_of(members.begin(), members.end(),
                       [&](const Member& m) { return KeyOf(m) == key; });
  };
  for (const MemberKey& worker : plan_.workers) {
    if (is_there(worker)) continue;
    return Do(absl::UnavailableError(absl::StrCat(
        "expert worker '", worker.name, "' was lost with its experts at step ",
        step_, "; submit the job again with resume to go on from ",
        checkpoint_path_.empty() ? "the start" : checkpoint_path_)));
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
  if (phase_ == Phase::kLoadingWorkers) return;
  LoadRouters();
  if (phase_ == Phase::kMicrobatches) Dispatch();
}

void JobRunner::Serve() {
  phase_ = Phase::kServing;
  MemberCommands unload;
  const auto add = [&](const MemberKey& key) {
    unload.emplace_back(key, v1::Command());
    unload.back().second.mutable_unload_session()->set_session(session_);
  };
  for (const MemberKey& worker : plan_.workers) add(worker);
  for (const auto& [router, state] : routers_) add(router);
  Tell(*env_.members, std::move(unload));
  env_.serve(job_.serve_as, checkpoint_path_, [this](const absl::Status& s) {
    if (phase_ == Phase::kOver) return;
    if (s.ok()) return Finish(v1::JOB_STATE_SUCCEEDED);
    Finish(v1::JOB_STATE_FAILED,
           Annotate(s, absl::StrCat("trained to ", checkpoint_path_,
                                    ", but it cannot be served")));
  });
}

void JobRunner::Cancel() {
  if (phase_ != Phase::kOver) Finish(v1::JOB_STATE_CANCELLED);
}

void JobRunner::Stop() {
  stop_ = true;
  if (phase_ == Phase::kMicrobatches || phase_ == Phase::kPreparing ||
      phase_ == Phase::kCommitting || phase_ == Phase::kCheckpointing ||
      phase_ == Phase::kServing) {
    return;
  }
  Cancel();
}

void JobRunner::Finish(v1::JobState state, const absl::Status& status) {
  if (phase_ == Phase::kCheckpointing && state != v1::JOB_STATE_SUCCEEDED &&
      checkpoint_path_ != CheckpointPath(job_.checkpoint.directory, step_)) {
    (void)AbandonCheckpoint(job_.checkpoint.directory, step_);
  }
  const bool was_loaded = phase_ != Phase::kServing;
  phase_ = Phase::kOver;
  if (was_loaded) {
    MemberCommands abort;
    const auto add = [&](const MemberKey& key) {
      abort.emplace_back(key, v1::Command());
      abort.back().second.mutable_abort_session()->set_session(session_);
    };
    for (const MemberKey& worker : plan_.workers) add(worker);
    for (const auto& [router, router_state] : routers_) add(router);
    Tell(*env_.members, std::move(abort));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    dense_ = nullptr;
    loaded_.reset();
    ready_routers_.clear();
    plan_ = {};
  }
  routers_.clear();
  microbatches_ = nullptr;
  checkpoint_ = nullptr;
  gradients_.clear();
  if (state == v1::JOB_STATE_FAILED) {
    LogError("job failed", {{"job", job_.name}, {"status", status}});
  } else {
    LogInfo("job over", {{"job", job_.name},
                         {"state", v1::JobState_Name(state)},
                         {"checkpoint", checkpoint_path_}});
  }
  reporter_->SetState(state, status);
  reporter_ = nullptr;
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
  return info;
}

}  // namespace gshard
