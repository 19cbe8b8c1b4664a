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
#include "services/storage/file.h"
#include "services/config/process_options.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/serving/visible_models.h"
#include "services/rpc/wire/status.h"

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
                         .on_change = [this] { OnMembersChanged(); }})),
      served_(
          members_.get(), &serving_queue_,
          [this] { return ++placement_version_; },
          [this](const std::string& session, const v1::Placement& placement) {
            // Members that are sent away keep what they hold.
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
           .gauges = options_.serving_gauges}) {
  // Above those of earlier coordinators, which routers may still have.
  placement_version_ = absl::ToUnixMicros(absl::Now());
  auto store = JobStore::Open(/*directory=*/"");
  CHECK(store.ok());  // in memory
  store_ = *std::move(store);
  for (const auto& [name, directory] : options_.models) {
    initial_models_[name] = {name, /*version=*/"", directory};
  }
  TellAwaited();
  // Where translations, in this process or on this machine, want the whole
  // core, sums, checkpoints and the training of tokenizers have what members
  // have by default. A program is as nice as the thread that starts it.
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

Coordinator::Job* Coordinator::Find(const std::string& job) const {
  const auto found = by_name_.find(job);
  return found == by_name_.end() ? nullptr : found->second;
}

absl::StatusOr<Coordinator::Job*> Coordinator::FindFor(
    const Caller& caller, const std::string& job) const {
  Job* const found = Find(job);
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("job: no job '", absl::CHexEscape(job), "'"));
  }
  RETURN_IF_ERROR(CheckFollow(caller, found->ownership, job));
  return found;
}

void Coordinator::SubmitJob(const v1::SubmitJobRequest& request,
                            const Requester& who,
                            Done<v1::SubmitJobResponse> done) {
  done =
      Audited<v1::SubmitJobResponse>({"submit", who, request.job().name(),
                                      request.job().checkpoint().directory()},
                                     std::move(done));
  files_queue_.Post([this, request, who, done = std::move(done)] {
    // Disks may be slow: meanwhile jobs go on, and are cancelled.
    const Caller resolved = ResolveFolders(who.caller, options_.resolve);
    absl::StatusOr<TrainingJob> job =
        draining_ ? absl::UnavailableError("the coordinator is shutting down")
                  : ReadJob(request, who, resolved);
    jobs_queue_.Post([this, resume = request.resume(), who, resolved, done,
                      job = std::move(job)] {
      const absl::StatusOr<v1::SubmitJobResponse> response =
          job.ok() ? AcceptJob(*job, resume, who, resolved) : job.status();
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
    const auto job = [&]() -> absl::StatusOr<Job*> {
      MutexLock lock(mutex_);
      return FindFor(caller, name);
    }();
    if (!job.ok()) return done(job.status());
    if (*job == running_) {
      running_->thread->Cancel();
      on_ended_.push_back([done] { done(v1::CancelJobResponse()); });
      return;
    }
    CancelQueued(*job);
    done(v1::CancelJobResponse());
  });
}

void Coordinator::LoadModel(const v1::LoadModelRequest& request,
                            const Requester& who,
                            Done<v1::LoadModelResponse> done) {
  const std::string& named = request.checkpoint_directory();
  done = Audited<v1::LoadModelResponse>({"load", who, request.name(), named},
                                        std::move(done));
  absl::Status status = CheckModel(who.caller, Role::kAdmin, request.name());
  if (request.rollback() && !(request.version().empty() && named.empty() &&
                              request.replicas() == 0)) {
    status = absl::InvalidArgumentError(
        "rollback: expected nothing but a name beside it");
  }
  if (!status.ok()) return done(status);
  if (named.empty()) return LoadFrom("", request, std::move(done));
  files_queue_.Post([this, request, done = std::move(done)] {
    std::string directory = request.checkpoint_directory();
    const absl::Status may = path_rights_.Admit(&directory);
    if (!may.ok()) return done(Annotate(may, "checkpoint_directory"));
    LoadFrom(directory, request, done);
  });
}

void Coordinator::LoadFrom(const std::string& directory,
                           const v1::LoadModelRequest& request,
                           Done<v1::LoadModelResponse> done) {
  serving_queue_.Post([this, request, directory, done = std::move(done)] {
    ServedModels::Request model{.name = request.name(),
                                .version = request.version(),
                                .checkpoint_directory = directory,
                                .replicas = request.replicas()};
    if (request.rollback()) {
      const auto previous = served_.Previous(request.name());
      if (!previous.ok()) return done(previous.status());
      model = *previous;
    }
    Serve(model, [done](const absl::StatusOr<std::string>& session) {
      if (!session.ok()) return done(session.status());
      v1::LoadModelResponse response;
      response.set_session(*session);
      done(std::move(response));
    });
  });
}

void Coordinator::UnloadModel(const v1::UnloadModelRequest& request,
                              const Requester& who,
                              Done<v1::UnloadModelResponse> done) {
  done = Audited<v1::UnloadModelResponse>({"unload", who, request.session()},
                                          std::move(done));
  const absl::Status may =
      CheckModel(who.caller, Role::kAdmin, request.session());
  if (!may.ok()) return done(may);
  serving_queue_.Post([this, request, done = std::move(done)] {
    const std::string name =
        std::string(absl::string_view(request.session())
                        .substr(0, request.session().find('@')));
    const std::string version = name.size() < request.session().size()
                                    ? request.session().substr(name.size() + 1)
                                    : "";
    // One that was to be served, but could not be yet, is none to keep either.
    const auto waiting = initial_models_.find(name);
    const bool waited = waiting != initial_models_.end() &&
                        (version.empty() || waiting->second.version.empty() ||
                         waiting->second.version == version);
    if (waited) {
      initial_models_.erase(waiting);
      TellAwaited();
    }
    absl::Status status = served_.Unload(request.session());
    if (waited && absl::IsNotFound(status)) status = absl::OkStatus();
    // Another version of the name may be served, and is to be kept.
    if (status.ok()) status = store_->RemoveModel(name, version);
    if (!status.ok()) return done(status);
    done(v1::UnloadModelResponse());
  });
}

void Coordinator::Serve(const ServedModels::Request& request,
                        ServedModels::OnLoaded done) {
  served_.Load(request, [this, request,
                         done](const absl::StatusOr<std::string>& session) {
    if (!session.ok()) return done(session);
    initial_models_.erase(request.name);
    TellAwaited();
    std::optional<StoredModel> before;
    if (const auto previous = served_.Previous(request.name); previous.ok()) {
      before = ToStored(*previous);
    }
    const ServedModels::Request* const served = served_.Find(*session);
    const absl::Status stored = store_->PutModel(
        ToStored(served == nullptr ? request : *served), before);
    done(stored.ok() ? session : stored);
  });
}

StoredModel Coordinator::ToStored(const ServedModels::Request& request) {
  return {.name = request.name,
          .version = request.version,
          .directory = request.checkpoint_directory,
          .replicas = request.replicas};
}

ServedModels::Request Coordinator::FromStored(const StoredModel& model) {
  return {.name = model.name,
          .version = model.version,
          .checkpoint_directory = model.directory,
          .replicas = model.replicas};
}

bool Coordinator::AwaitsWorkers() const {
  std::set<std::string> missing = awaited_workers_;
  for (const Member& worker : members_->List(MemberRole::kExpertWorker)) {
    missing.erase(worker.info.id);
  }
  return !missing.empty();
}

void Coordinator::ServeInitialModels() {
  if (initial_models_.empty()) return served_.Watch();
  const size_t routers = members_->List(MemberRole::kRouter).size();
  const size_t workers = members_->List(MemberRole::kExpertWorker).size();
  if (static_cast<int64_t>(routers) < options_.min_routers ||
      static_cast<int64_t>(workers) < options_.min_workers || AwaitsWorkers()) {
    return;
  }
  for (const auto& [name, stored] : std::exchange(initial_models_, {})) {
    served_.Load(
        FromStored(stored),
        [this, model = stored](const absl::StatusOr<std::string>& session) {
          // Cancelled: somebody unloaded it, or loaded another version.
          if (session.ok() || absl::IsCancelled(session.status())) return;
          LogError("a model is not served", {{"model", model.name},
                                             {"checkpoint", model.directory},
                                             {"status", session.status()}});
          // Other members may be able to, or these a bit later.
          initial_models_.emplace(model.name, model);
          TellAwaited();
          RetryInitialModels();
        });
  }
  TellAwaited();
  served_.Watch();
}

void Coordinator::RetryInitialModels() {
  if (std::exchange(retrying_, true)) return;
  serving_queue_.PostAfter(options_.serving_retry, [this] {
    retrying_ = false;
    ServeInitialModels();
  });
}

void Coordinator::TellAwaited() {
  std::set<std::string> names;
  for (const auto& [name, model] : initial_models_) names.insert(name);
  served_.SetAwaited(std::move(names));
}

absl::StatusOr<v1::ListJobsResponse> Coordinator::ListJobs(
    const v1::ListJobsRequest& request, const Caller& caller) const {
  const Caller resolved = folder_limits_.Resolve(caller);
  v1::ListJobsResponse response;
  {
    MutexLock lock(mutex_);
    if (!request.job().empty()) {
      RETURN_IF_ERROR(FindFor(resolved, request.job()).status());
    }
    for (const auto& job : jobs_) {
      if (Find(job->name) != job.get()) continue;  // it was run again
      if (!request.job().empty() && job->name != request.job()) continue;
      if (!MayFollow(resolved, job->ownership)) continue;
      v1::JobInfo* const info = response.add_jobs();
      *info->mutable_progress() = job->feed->Latest();
      info->set_submitted_unix_micros(job->submitted_micros);
    }
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
  for (v1::Member& member : members_->Describe()) {
    *response.add_members() = std::move(member);
  }
  std::vector<v1::SessionInfo> sessions = served_.Describe();
  {
    MutexLock lock(mutex_);
    for (const auto& job : jobs_) {
      if (Find(job->name) != job.get()) continue;  // it was submitted again
      if (!MayFollow(resolved, job->ownership)) continue;
      *response.add_jobs() = job->feed->Latest();
      if (job->thread == nullptr) continue;
      std::optional<v1::SessionInfo> info = job->thread->Describe();
      if (info.has_value()) sessions.push_back(*std::move(info));
    }
  }
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
  const Caller resolved = folder_limits_.Resolve(caller);
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const Job* const found, FindFor(resolved, job));
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
  (void)ended->get_future().wait_for(absl::ToChronoMilliseconds(grace));
  HaltJob();
  {
    MutexLock lock(mutex_);
    for (const auto& any : jobs_) any->feed->Close();
  }
  members_->Shutdown();
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
