#include "services/coordinator/coordinator.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/config/process_options.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/serving/visible_models.h"
#include "services/rpc/wire/status.h"
#include "services/storage/file.h"

namespace gshard {
Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      path_rights_(options_.data_roots, options_.resolve),
      folder_limits_(options_.resolve),
      members_(std::make_unique<Members>(
          MembersOptions{.lease = options_.lease,
                         .command_timeout = options_.command_timeout,
                         .load_timeout = options_.load_timeout,
                         .allow_mixed_devices = options_.allow_mixed_devices,
                         .clock = options_.clock,
                         .models = [this] { return served_.Names(); },
                         .tracer = options_.tracer,
                         .on_change = [this] { OnMembersChanged(); }})),
      served_(
          members_.get(), &serving_queue_,
          [this] { return ++placement_version_; },
          [this](const auto& model, const auto& previous) {
            return Keep(model, previous);
          },
          [this](const std::string& session, const v1::Placement& placement) {
            // Dismissed members keep what they hold.
            if (draining_) return;
            const absl::Status kept = store_->PutPlacement(session, placement);
            if (kept.ok()) return;
            LogError(
                "a restart of the coordinator will not know where "
                "experts are",
                {{"session", session}, {"status", kept}});
          },
          {.replicas = static_cast<int32_t>(options_.replicas),
           .watch_interval = options_.watch_interval,
           .load_half_life = options_.load_half_life,
           .retry_pause = options_.serving_retry,
           .lease = options_.lease,
           .gauges = options_.serving_gauges}) {
  // Above versions of earlier coordinators, which routers may still have.
  placement_version_ = absl::ToUnixMicros(absl::Now());
  auto store = JobStore::Open(/*directory=*/"");
  CHECK(store.ok());  // in memory
  store_ = *std::move(store);
  for (const ModelRequest& model : options_.models) {
    initial_models_[model.name] = {.request = model};
  }
  TellAwaited();
  // Sums, checkpoints and the training of tokenizers yield to translations on
  // this machine, like training on members does by default. A program inherits
  // the nice value of the thread that starts it.
  for (TaskQueue* const queue : {&sums_queue_, &disk_queue_}) {
    queue->Post(
        [] { BeNice(NicenessOfShare(ProcessOptions().training_share)); });
  }
  CountMembers();
}

void Coordinator::CountMembers() {
  for (const MemberRole role :
       {MemberRole::kRouter, MemberRole::kExpertWorker}) {
    options_.member_counts
        .With({role == MemberRole::kRouter ? "router" : "expert_worker"})
        .Set(static_cast<double>(members_->List(role).size()));
  }
}

void Coordinator::OnMembersChanged() {
  CountMembers();
  jobs_queue_.Post([this] {
    if (running_ != nullptr) running_->thread->OnMembersChanged();
  });
  serving_queue_.Post([this] {
    served_.OnMembersChanged();
    ServeInitialModels();
  });
}

std::shared_ptr<Coordinator::Job> Coordinator::Find(
    const std::string& job) const {
  const auto found = by_name_.find(job);
  return found == by_name_.end() ? nullptr : found->second;
}

absl::StatusOr<std::shared_ptr<Coordinator::Job>> Coordinator::FindFor(
    const Caller& caller, const std::string& job) const {
  std::shared_ptr<Job> found;
  {
    MutexLock lock(mutex_);
    found = Find(job);
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("job: no job '", absl::CHexEscape(job), "'"));
  }
  RETURN_IF_ERROR(CheckFollow(caller, found->ownership, job));
  return found;
}

std::vector<std::shared_ptr<const Coordinator::Job>> Coordinator::ListFor(
    const Caller& caller) const {
  std::vector<std::shared_ptr<const Job>> jobs;
  {
    MutexLock lock(mutex_);
    jobs.reserve(by_name_.size());
    for (const auto& [name, job] : by_name_) jobs.push_back(job);
  }
  std::erase_if(jobs, [&](const auto& job) {
    return !MayFollow(caller, job->ownership);
  });
  std::sort(jobs.begin(), jobs.end(),
            [](const auto& a, const auto& b) { return a->place < b->place; });
  return jobs;
}

void Coordinator::SubmitJob(const v1::SubmitJobRequest& request,
                            const Requester& who,
                            Done<v1::SubmitJobResponse> done) {
  done = Audited<v1::SubmitJobResponse>(
      {request.validate_only() ? "validate" : "submit", who,
       request.job().name(), request.job().checkpoint().directory()},
      std::move(done));
  files_queue_.Post([this, request, who, done = std::move(done)] {
    // Disks may be slow: meanwhile jobs continue, and can be cancelled.
    const Caller resolved = ResolveFolders(who.caller, options_.resolve);
    absl::StatusOr<StoredJob> job =
        draining_ ? absl::UnavailableError("the coordinator is shutting down")
                  : ReadJob(request, who, resolved);
    jobs_queue_.Post([this, validate_only = request.validate_only(), resolved,
                      done, job = std::move(job)] {
      const absl::StatusOr<v1::SubmitJobResponse> response =
          job.ok() ? AcceptJob(*job, validate_only, resolved) : job.status();
      done(response);
      if (response.ok()) StartNextJob();
    });
  });
}

void Coordinator::CancelJob(const v1::CancelJobRequest& request,
                            const Requester& who,
                            Done<v1::CancelJobResponse> done) {
  done = Audited<v1::CancelJobResponse>({"cancel", who, request.job()},
                                        std::move(done));
  jobs_queue_.Post([this, name = request.job(),
                    caller = folder_limits_.Resolve(who.caller),
                    done = std::move(done)] {
    const auto job = FindFor(caller, name);
    if (!job.ok()) return done(job.status());
    if (*job == running_) {
      running_->thread->Cancel();
      on_ended_.push_back([this, job = *job, done] {
        // A stop may have been faster and parked it, for the next coordinator.
        CancelQueued(job);
        done(v1::CancelJobResponse());
      });
      return;
    }
    CancelQueued(*job);
    done(v1::CancelJobResponse());
  });
}

absl::StatusOr<v1::ListJobsResponse> Coordinator::ListJobs(
    const v1::ListJobsRequest& request, const Caller& caller) const {
  const Caller resolved = folder_limits_.Resolve(caller);
  std::vector<std::shared_ptr<const Job>> jobs;
  if (request.job().empty()) {
    jobs = ListFor(resolved);
  } else {
    ASSIGN_OR_RETURN(jobs.emplace_back(), FindFor(resolved, request.job()));
  }
  v1::ListJobsResponse response;
  for (const auto& job : jobs) {
    v1::JobInfo* const info = response.add_jobs();
    *info->mutable_progress() = job->feed->Latest();
    info->set_submitted_unix_micros(job->submitted_micros);
  }
  if (!request.include_history()) return response;
  for (v1::JobInfo& info : *response.mutable_jobs()) {
    ASSIGN_OR_RETURN(const std::vector<v1::JobChange> history,
                     store_->History(info.progress().job()));
    info.mutable_history()->Add(history.begin(), history.end());
  }
  return response;
}

v1::DescribeResponse Coordinator::Describe(const v1::DescribeRequest& request,
                                           const Caller& caller) const {
  const Caller resolved = folder_limits_.Resolve(caller);
  v1::DescribeResponse response;
  response.set_build_version(options_.build_version);
  const auto departures = served_.Departures();
  for (v1::Member& member : members_->Describe()) {
    const auto departure = departures.find(member.name());
    if (departure != departures.end()) {
      member.set_may_leave(departure->second.can_be_lost);
      if (member.heartbeat().leaving() && !departure->second.may_leave) {
        member.set_leaving_waits_for(departure->second.why);
      }
    }
    *response.add_members() = std::move(member);
  }
  // Before the sessions, so that a model that begins to load is in one of them.
  for (const std::string& name : served_.Awaited()) {
    response.add_awaited_models(name);
  }
  std::vector<v1::SessionInfo> sessions = served_.Describe();
  for (const auto& job : ListFor(resolved)) {
    *response.add_jobs() = job->feed->Latest();
  }
  std::optional<v1::SessionInfo> training;
  {
    MutexLock lock(mutex_);
    if (running_ != nullptr && MayFollow(resolved, running_->ownership)) {
      training = running_->thread->Describe();
    }
  }
  if (training.has_value()) sessions.push_back(*std::move(training));
  std::sort(sessions.begin(), sessions.end(), [](const auto& a, const auto& b) {
    return a.session() < b.session();
  });
  for (v1::SessionInfo& session : sessions) {
    for (v1::WorkerPlacement& worker :
         *session.mutable_placement()->mutable_workers()) {
      session.add_expert_counts(worker.experts_size());
      if (!request.include_experts()) worker.clear_experts();
    }
    *response.add_sessions() = std::move(session);
  }
  HideModels(caller, &response);
  return response;
}

absl::StatusOr<std::shared_ptr<ProgressFeed>> Coordinator::WatchJob(
    const std::string& job, const Caller& caller) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<Job> found,
                   FindFor(folder_limits_.Resolve(caller), job));
  return found->feed;
}

absl::StatusOr<std::shared_ptr<DenseParameters>> Coordinator::FindTraining(
    const std::string& session) const {
  MutexLock lock(mutex_);
  std::shared_ptr<DenseParameters> dense =
      running_ == nullptr ? nullptr : running_->thread->dense();
  if (dense == nullptr || dense->session() != session) {
    return absl::NotFoundError(
        absl::StrCat("no training session '", absl::CHexEscape(session), "'"));
  }
  return dense;
}

void Coordinator::Drain(absl::Duration grace) {
  draining_ = true;
  auto ended = std::make_shared<std::promise<void>>();
  jobs_queue_.Post([this, ended] {
    if (running_ == nullptr) return ended->set_value();
    on_ended_.push_back([ended] { ended->set_value(); });
    running_->thread->Stop();
  });
  if (ended->get_future().wait_for(absl::ToChronoMilliseconds(grace)) ==
      std::future_status::timeout) {
    MutexLock lock(mutex_);
    if (running_ != nullptr) {
      LogWarning(
          "a job has not stopped in time and is halted: whoever continues it "
          "repeats its steps since the last checkpoint",
          {{"job", running_->name},
           {"drain_time", absl::FormatDuration(grace)}});
    }
  }
  HaltJob();
  {
    MutexLock lock(mutex_);
    for (const auto& any : open_) any->feed->Close();
  }
  members_->Shutdown();
  // Without members no load ends, but the server waits for its call.
  serving_queue_.Post([this] {
    served_.StopWaiting(
        absl::UnavailableError("the coordinator is shutting down"));
  });
}

void Coordinator::HaltJob() {
  MutexLock lock(mutex_);
  if (running_ != nullptr) running_->thread->Halt();
}

void Coordinator::Shutdown() {
  draining_ = true;
  HaltJob();
  members_->Shutdown();
  folder_limits_.Stop();
  files_queue_.Stop();
  checkpoints_queue_.Stop();
  jobs_queue_.Stop();
  std::unique_ptr<JobThread> thread;
  {
    MutexLock lock(mutex_);
    if (running_ != nullptr) thread = std::move(running_->thread);
    running_ = nullptr;
  }
  thread = nullptr;
  disk_queue_.Stop();
  sums_queue_.Stop();
  serving_queue_.Stop();
}

}  // namespace gshard
