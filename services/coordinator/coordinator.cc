#include "services/coordinator/coordinator.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/file.h"
#include "services/config/training_job_proto.h"

namespace gshard {
namespace {

// Members see the same files, but from working directories of their own.
absl::Status MakeAbsolute(std::string* path) {
  if (path->empty()) return absl::OkStatus();
  std::error_code error;
  const auto absolute = std::filesystem::absolute(*path, error);
  if (error) return FileError(error.value(), "resolve", *path);
  *path = absolute.lexically_normal().string();
  return absl::OkStatus();
}

absl::Status CheckReadable(absl::string_view field, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status status = InputFile::Open(path).status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected a readable file: ", status.message()));
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      members_(std::make_unique<Members>(
          MembersOptions{.lease = options_.lease,
                         .clock = options_.clock,
                         .on_change = [this] { OnMembersChanged(); }})),
      served_(members_.get(), &serving_queue_,
              [this] { return ++placement_version_; }) {
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
    std::unique_lock<std::mutex> lock(mutex_);
    JobRunner* const job = jobs_.empty() ? nullptr : jobs_.back().get();
    lock.unlock();
    if (job != nullptr) job->OnMembersChanged();
  });
  serving_queue_.Post([this] {
    served_.OnMembersChanged();
    ServeInitialModels();
  });
}

void Coordinator::ServeInitialModels() {
  if (initial_models_begun_ || options_.models.empty()) return;
  const size_t routers = members_->List(MemberRole::kRouter).size();
  const size_t workers = members_->List(MemberRole::kExpertWorker).size();
  if (static_cast<int64_t>(routers) < options_.min_routers ||
      static_cast<int64_t>(workers) < options_.min_workers) {
    return;
  }
  initial_models_begun_ = true;
  for (const auto& [name, directory] : options_.models) {
    served_.Load(name, /*version=*/"", directory,
                 [](const absl::StatusOr<std::string>& session) {
                   if (session.ok()) return;
                   LogError("a model of the command line is not served",
                            {{"status", session.status()}});
                 });
  }
}

JobRunner* Coordinator::Find(const std::string& job) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = jobs_.size(); i > 0; --i) {
    if (job_names_[i - 1] == job) return jobs_[i - 1].get();
  }
  return nullptr;
}

void Coordinator::SubmitJob(const v1::SubmitJobRequest& request,
                            Done<v1::SubmitJobResponse> done) {
  jobs_queue_.Post([this, request, done = std::move(done)] {
    absl::StatusOr<v1::SubmitJobResponse> response = StartJob(request);
    if (!response.ok()) {
      LogWarning("job refused", {{"status", response.status()}});
      return done(response.status());
    }
    done(*std::move(response));
    // On the queue, so that the caller is answered before the long part.
    JobRunner* const job = Find(request.job().name());
    jobs_queue_.Post([job] { job->Start(); });
  });
}

absl::StatusOr<v1::SubmitJobResponse> Coordinator::StartJob(
    const v1::SubmitJobRequest& request) {
  if (draining_) {
    return absl::UnavailableError("the coordinator is shutting down");
  }
  if (!request.has_job()) {
    return absl::InvalidArgumentError("job: expected one, got nothing");
  }
  ASSIGN_OR_RETURN(TrainingJob job, TrainingJobFromProto(request.job()));
  RETURN_IF_ERROR(CheckReadable("data.train_path", job.data.train_path));
  RETURN_IF_ERROR(CheckReadable("data.source_tokenizer_path",
                                job.data.source_tokenizer_path));
  RETURN_IF_ERROR(CheckReadable("data.target_tokenizer_path",
                                job.data.target_tokenizer_path));
  for (std::string* path :
       {&job.data.train_path, &job.data.dev_path,
        &job.data.source_tokenizer_path, &job.data.target_tokenizer_path,
        &job.checkpoint.directory, &job.summary_directory}) {
    RETURN_IF_ERROR(MakeAbsolute(path));
  }
  int64_t attempt = 1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!jobs_.empty() && !jobs_.back()->over()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job '", job_names_.back(),
                       "' is running; wait for its end or cancel it"));
    }
    attempt += std::count(job_names_.begin(), job_names_.end(), job.name);
  }
  if (attempt > 1 && !request.resume()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "name: there was a job '", job.name,
        "'; choose another name, or resume it from its last checkpoint"));
  }
  ASSIGN_OR_RETURN(const auto checkpoints,
                   ListCheckpoints(job.checkpoint.directory));
  if (!request.resume() && !checkpoints.empty()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "checkpoint.directory: expected one without checkpoints, got ",
        checkpoints.front(), "; choose another folder, or resume"));
  }
  if (request.resume()) RETURN_IF_ERROR(OpenToResume(job).status());
  JobEnvironment environment;
  environment.members = members_.get();
  environment.queue = &jobs_queue_;
  environment.metrics = options_.metrics;
  environment.clock = options_.clock;
  environment.next_placement_version = [this] { return ++placement_version_; };
  environment.serve = [this](const std::string& name,
                             const std::string& directory,
                             std::function<void(const absl::Status&)> done) {
    serving_queue_.Post([this, name, directory, done = std::move(done)] {
      served_.Load(name, /*version=*/"", directory,
                   [this, done](const absl::StatusOr<std::string>& session) {
                     jobs_queue_.Post(
                         [done, status = session.status()] { done(status); });
                   });
    });
  };
  v1::SubmitJobResponse response;
  response.set_job(job.name);
  std::lock_guard<std::mutex> lock(mutex_);
  job_names_.push_back(job.name);
  jobs_.push_back(std::make_unique<JobRunner>(
      JobSettings{.job = std::move(job),
                  .resume = request.resume(),
                  .attempt = attempt,
                  .microbatch_timeout = options_.microbatch_timeout,
                  .retry_delay = options_.retry_delay},
      std::move(environment)));
  return response;
}

void Coordinator::CancelJob(const v1::CancelJobRequest& request,
                            Done<v1::CancelJobResponse> done) {
  jobs_queue_.Post([this, name = request.job(), done = std::move(done)] {
    JobRunner* const job = Find(name);
    if (job == nullptr) {
      return done(absl::NotFoundError(
          absl::StrCat("job: no job '", absl::CHexEscape(name), "'")));
    }
    job->Cancel();
    done(v1::CancelJobResponse());
  });
}

void Coordinator::LoadModel(const v1::LoadModelRequest& request,
                            Done<v1::LoadModelResponse> done) {
  std::string directory = request.checkpoint_directory();
  const absl::Status status = MakeAbsolute(&directory);
  if (!status.ok()) return done(status);
  serving_queue_.Post([this, request, directory, done = std::move(done)] {
    served_.Load(request.name(), request.version(), directory,
                 [done](const absl::StatusOr<std::string>& session) {
                   if (!session.ok()) return done(session.status());
                   v1::LoadModelResponse response;
                   response.set_session(*session);
                   done(std::move(response));
                 });
  });
}

void Coordinator::UnloadModel(const v1::UnloadModelRequest& request,
                              Done<v1::UnloadModelResponse> done) {
  serving_queue_.Post([this, request, done = std::move(done)] {
    const absl::Status status = served_.Unload(request.session());
    if (!status.ok()) return done(status);
    done(v1::UnloadModelResponse());
  });
}

v1::DescribeResponse Coordinator::Describe(
    const v1::DescribeRequest& request) const {
  v1::DescribeResponse response;
  response.set_build_version(options_.build_version);
  for (v1::Member& member : members_->Describe()) {
    *response.add_members() = std::move(member);
  }
  std::vector<v1::SessionInfo> sessions = served_.Describe();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& job : jobs_) {
      *response.add_jobs() = job->feed().Latest();
      std::optional<v1::SessionInfo> info = job->Describe();
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
  return response;
}

absl::StatusOr<ProgressFeed*> Coordinator::WatchJob(
    const std::string& job) const {
  JobRunner* const runner = Find(job);
  if (runner == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("job: no job '", absl::CHexEscape(job), "'"));
  }
  return &runner->feed();
}

absl::StatusOr<std::shared_ptr<DenseParameters>> Coordinator::FindTraining(
    const std::string& session) const {
  std::lock_guard<std::mutex> lock(mutex_);
  // One job runs at a time: the last one.
  std::shared_ptr<DenseParameters> dense =
      jobs_.empty() ? nullptr : jobs_.back()->dense();
  if (dense == nullptr || dense->session() != session) {
    return absl::NotFoundError(
        absl::StrCat("no training session '", absl::CHexEscape(session), "'"));
  }
  return dense;
}

void Coordinator::Drain(absl::Duration grace) {
  draining_ = true;
  JobRunner* job = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!jobs_.empty()) job = jobs_.back().get();
  }
  if (job != nullptr && !IsOver(job->feed().Latest().state())) {
    auto over = std::make_shared<std::promise<void>>();
    auto told = std::make_shared<bool>(false);
    const int64_t id =
        job->feed().Listen([over, told](const v1::JobProgress* progress) {
          if (*told || progress == nullptr || !IsOver(progress->state())) {
            return;
          }
          *told = true;
          over->set_value();
        });
    jobs_queue_.Post([job] { job->Stop(); });
    (void)over->get_future().wait_for(absl::ToChronoMilliseconds(grace));
    job->feed().Remove(id);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& any : jobs_) any->feed().Close();
  }
  members_->Shutdown();
}

void Coordinator::Shutdown() {
  members_->Shutdown();
  jobs_queue_.Stop();
  serving_queue_.Stop();
}

}  // namespace gshard
