// The jobs of a Coordinator: which it accepts, in what order they run, and how
// they are restored after a restart.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/machine_limits.h"
#include "services/base/share.h"
#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/checkpoint/folder_claim.h"
#include "services/config/process_options.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/membership/training_memory.h"
#include "services/coordinator/preparation/job_files.h"
#include "services/rpc/wire/status.h"
#include "services/storage/canonical_path.h"

namespace gshard {

absl::Status Coordinator::CheckNew(const TrainingJob& job, bool resume,
                                   const Caller& resolved) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<const Job> same = Find(job.name);
  if (same != nullptr) {
    RETURN_IF_ERROR(
        Annotate(CheckFollow(resolved, same->ownership, job.name), "name"));
  }
  if (same != nullptr && !same->feed->over()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "name: there is a job '", job.name, "', which is not over"));
  }
  if (same != nullptr && !resume) {
    return absl::AlreadyExistsError(absl::StrCat(
        "name: there was a job '", job.name,
        "'; choose another name, or resume it from its last checkpoint"));
  }
  for (const auto& other : open_) {
    if (!other->feed->over() &&
        other->stored->job.checkpoint.directory == job.checkpoint.directory) {
      return absl::AlreadyExistsError(
          absl::StrCat("checkpoint.directory: ", job.checkpoint.directory,
                       " is that of job '", other->name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckMemory(const TrainingJob& job) const {
  std::vector<Member> workers = members_->Workers();
  // Workers that join later may have more memory, or leave fewer experts for
  // each.
  if (std::ssize(workers) < job.min_workers) return absl::OkStatus();
  return WorkersWithMemory(job, std::move(workers), job.min_workers).status();
}

int64_t Coordinator::LastCheckpoint(const TrainingJob& job,
                                    const Caller& resolved) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<const Job> same = Find(job.name);
  if (same == nullptr || !same->feed->over() ||
      !MayFollow(resolved, same->ownership)) {
    return 0;
  }
  const v1::JobProgress before = same->feed->Latest();
  return IsWithin(before.checkpoint_directory(), job.checkpoint.directory)
             ? before.checkpoint_step()
             : 0;
}

absl::StatusOr<StoredJob> Coordinator::ReadJob(
    const v1::SubmitJobRequest& request, const Requester& who,
    const Caller& resolved) const {
  if (!request.has_job()) {
    return absl::InvalidArgumentError("job: expected one, got nothing");
  }
  ASSIGN_OR_RETURN(TrainingJob job, TrainingJobFromProto(request.job()));
  if (!job.serve_as.empty()) {
    RETURN_IF_ERROR(Annotate(CheckModel(who.caller, Role::kAdmin, job.serve_as),
                             "serve_as"));
  }
  RETURN_IF_ERROR(path_rights_.Admit(who.caller, &job));
  if (request.resume()) {
    // First, since whatever else lies on a disk that is away is missing, too.
    RETURN_IF_ERROR(CheckIsThere(job, LastCheckpoint(job, resolved)));
  }
  RETURN_IF_ERROR(FindJobFiles(&job));
  // Files found by patterns may be links.
  RETURN_IF_ERROR(path_rights_.Admit(who.caller, &job));
  RETURN_IF_ERROR(CheckNew(job, request.resume(), resolved));
  RETURN_IF_ERROR(CheckMemory(job));
  // First, since a rival's files change while they are checked.
  RETURN_IF_ERROR(FolderClaim::CheckFree(job.checkpoint.directory));
  ASSIGN_OR_RETURN(const int64_t step, CheckToBegin(job, request.resume()));
  v1::JobProgress progress;
  progress.set_job(job.name);
  progress.set_state(v1::JOB_STATE_QUEUED);
  progress.set_total_steps(job.steps);
  progress.set_eta_seconds(-1);
  if (step > 0) {
    progress.set_checkpoint_step(step);
    progress.set_checkpoint_directory(
        CheckpointPath(job.checkpoint.directory, step));
  }
  return StoredJob{.job = std::move(job),
                   .resume = request.resume(),
                   .submitted_micros = absl::ToUnixMicros(absl::Now()),
                   .progress = std::move(progress),
                   .submitter = who};
}

absl::Status Coordinator::CheckQueue(const std::string& submitter) const {
  MutexLock lock(mutex_);
  int64_t all = 0, its = 0;
  for (const auto& job : open_) {
    if (job->feed->over()) continue;  // and is about to be retired
    ++all;
    its += job->ownership.submitter == submitter;
  }
  if (IsWithinShare(its, 1, options_.max_jobs - all - 1)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "expected at most ", options_.max_jobs,
      " jobs that are not over, two thirds of them of one caller; there are ",
      all, ", of which ", its, " are the caller's: wait, or cancel some"));
}

absl::StatusOr<v1::SubmitJobResponse> Coordinator::AcceptJob(
    StoredJob stored, bool validate_only, const Caller& resolved) {
  const TrainingJob& job = stored.job;
  if (draining_) {
    return absl::UnavailableError("the coordinator is shutting down");
  }
  RETURN_IF_ERROR(CheckNew(job, stored.resume, resolved));
  RETURN_IF_ERROR(CheckQueue(stored.submitter.caller.name));
  RETURN_IF_ERROR(JobStore::TextOf(job).status());
  v1::SubmitJobResponse response;
  response.set_job(job.name);
  response.set_begins_anew(stored.resume &&
                           stored.progress.checkpoint_step() == 0);
  if (validate_only) return response;
  {
    MutexLock lock(mutex_);
    const std::shared_ptr<const Job> before = Find(job.name);
    if (before != nullptr) {
      stored.progress.set_attempt(before->feed->Latest().attempt());
    }
  }
  RETURN_IF_ERROR(store_->Submit(stored));
  AddJob(stored, /*restored=*/false, /*judged=*/true);
  return response;
}

JobEnvironment Coordinator::MakeEnvironment(const StoredJob& job) {
  JobEnvironment environment;
  environment.members = members_.get();
  environment.on_disk = [this](std::function<void()> work) {
    disk_queue_.Post(std::move(work));
  };
  environment.sums = &sums_queue_;
  environment.memory_bytes = MemoryLimit();
  environment.niceness = NicenessOfShare(ProcessOptions().training_share);
  environment.checkpoints_in_use = [this] { return CheckpointsInUse(); };
  environment.faults = options_.faults;
  environment.metrics = options_.metrics;
  environment.clock = options_.clock;
  environment.next_placement_version = [this] { return ++placement_version_; };
  environment.on_change = [this](const v1::JobProgress& progress) {
    Note(progress, absl::ToUnixMicros(absl::Now()));
  };
  environment.on_checkpoint = [this](const v1::JobProgress& progress) {
    Note(progress, /*time_micros=*/-1);
  };
  environment.serve = [this, name = job.job.serve_as, who = job.submitter](
                          const std::string& directory,
                          std::function<void(const absl::Status&)> done) {
    serving_queue_.Post([this, name, who, directory, done = std::move(done)] {
      ServeTrained(name, directory, who,
                   [this, done](const absl::StatusOr<std::string>& session) {
                     // Lost since the job saw them.
                     const bool none = members_->Routers().empty() ||
                                       members_->Workers().empty();
                     const absl::Status& status = session.status();
                     done(none && absl::IsFailedPrecondition(status)
                              ? absl::UnavailableError(status.message())
                              : status);
                   });
    });
  };
  environment.give_up_serving =
      [this, name = job.job.serve_as](
          const std::string& directory,
          std::function<void(const absl::Status&)> done) {
        serving_queue_.Post([this, name, directory, done = std::move(done)] {
          done(GiveUpServing(name, directory)
                   ? absl::CancelledError("the model is not wanted any more")
                   : absl::OkStatus());
        });
      };
  return environment;
}

std::vector<std::string> Coordinator::CheckpointsInUse() const {
  std::vector<std::string> directories;
  for (const ModelRequest& model : options_.models) {
    directories.push_back(model.checkpoint);
  }
  {
    MutexLock lock(mutex_);
    directories.insert(directories.end(), awaited_checkpoints_.begin(),
                       awaited_checkpoints_.end());
    for (const auto& job : open_) {
      const std::string& initial = job->stored->job.initialize_from;
      if (!initial.empty()) directories.push_back(initial);
    }
  }
  for (const v1::SessionInfo& served : served_.Describe()) {
    directories.push_back(served.checkpoint_directory());
  }
  const auto stored = store_->ModelDirectories();
  if (stored.ok()) {
    directories.insert(directories.end(), stored->begin(), stored->end());
  }
  return directories;
}

void Coordinator::AddJob(const StoredJob& stored, bool restored, bool judged) {
  auto job = std::make_shared<Job>();
  job->name = stored.job.name;
  job->submitted_micros = stored.submitted_micros;
  job->ownership = OwnershipOf(stored.submitter.caller.name, stored.job);
  job->feed = std::make_unique<ProgressFeed>(stored.progress);
  job->restored = restored;
  job->judged = judged;
  {
    MutexLock lock(mutex_);
    job->place = ++last_place_;
    if (const auto before = Find(job->name)) over_.erase(before->place);
    by_name_[job->name] = job;
    Count(job.get(), stored.progress.state());
    if (!IsOver(stored.progress.state())) {
      job->stored = std::make_unique<const StoredJob>(stored);
      open_.push_back(std::move(job));
      return;
    }
    over_[job->place] = job->name;
  }
  ForgetOldJobs();
}

void Coordinator::Retire(const std::shared_ptr<Job>& job) {
  {
    MutexLock lock(mutex_);
    std::erase(open_, job);
    job->stored = nullptr;
    if (Find(job->name) == job) over_[job->place] = job->name;
  }
  ForgetOldJobs();
}

void Coordinator::ForgetOldJobs() {
  MutexLock lock(mutex_);
  while (std::ssize(over_) > kMaxJobs) {
    const std::string oldest = over_.begin()->second;
    over_.erase(over_.begin());
    by_name_.erase(oldest);
    lock.Unlock();
    const absl::Status forgotten = store_->Forget(oldest);
    if (!forgotten.ok()) {
      LogWarning("a restart of the coordinator will know of an old job",
                 {{"job", oldest}, {"status", forgotten}});
    }
    lock.Lock();
  }
}

void Coordinator::StartNextJob() {
  if (running_ != nullptr) return;
  std::shared_ptr<Job> next;
  {
    MutexLock lock(mutex_);
    const auto found =
        std::find_if(open_.begin(), open_.end(),
                     [](const auto& job) { return !job->started; });
    if (found == open_.end()) return;
    next = *found;
  }
  if (!next->judged) return Judge(next);
  const StoredJob& stored = *next->stored;
  const JobEnvironment environment = MakeEnvironment(stored);
  MutexLock lock(mutex_);
  if (draining_) return;  // HaltJob() may have been
  next->started = true;
  next->thread = std::make_unique<JobThread>(
      JobSettings{.job = stored.job,
                  .resume = stored.resume || next->restored,
                  .attempt = stored.progress.attempt() + 1,
                  .restored = next->restored,
                  .durable = durable_,
                  .reduce = options_.reduce,
                  .retry_delay = options_.retry_delay},
      environment, next->feed.get(),
      [this] { jobs_queue_.Post([this] { OnJobEnded(); }); });
  running_ = next;
}

void Coordinator::Judge(const std::shared_ptr<Job>& job) {
  if (std::exchange(judging_, true)) return;
  disk_queue_.Post([this, job, stored = *job->stored]() mutable {
    const Caller& submitter = stored.submitter.caller;
    const absl::Status may = path_rights_.Admit(
        submitter.name.empty() ? Caller{.name = "", .grants = AllGrants()}
                               : submitter,
        &stored.job);
    jobs_queue_.Post([this, job, stored = std::move(stored), may] {
      judging_ = false;
      if (!job->feed->over()) OnJudged(job, stored, may);
      StartNextJob();
    });
  });
}

void Coordinator::OnJudged(const std::shared_ptr<Job>& job, StoredJob stored,
                           const absl::Status& may) {
  if (absl::IsPermissionDenied(may)) {
    LogError("a job is given up", {{"job", job->name}, {"status", may}});
    v1::JobProgress progress = job->feed->Latest();
    progress.set_state(v1::JOB_STATE_FAILED);
    *progress.mutable_status() = ToProtoStatus(may);
    Note(progress, absl::ToUnixMicros(absl::Now()));
    job->feed->Publish(progress);
    return Retire(job);
  }
  // A disk that is not mounted yet is no reason to fail a job.
  if (!may.ok()) {
    LogWarning(
        "the paths of a job cannot be judged yet; it goes on with what was "
        "judged before",
        {{"job", job->name}, {"status", may}});
  }
  MutexLock lock(mutex_);
  job->stored = std::make_unique<const StoredJob>(std::move(stored));
  job->judged = true;
}

void Coordinator::OnJobEnded() {
  std::shared_ptr<Job> ended;
  std::unique_ptr<JobThread> thread;
  {
    MutexLock lock(mutex_);
    ended = std::exchange(running_, nullptr);
    thread = std::move(ended->thread);
  }
  thread = nullptr;  // it has ended
  for (const auto& tell : std::exchange(on_ended_, {})) tell();
  if (ended->feed->over()) Retire(ended);
  StartNextJob();
}

void Coordinator::CancelQueued(const std::shared_ptr<Job>& job) {
  v1::JobProgress progress = job->feed->Latest();
  if (IsOver(progress.state())) return;
  progress.set_state(v1::JOB_STATE_CANCELLED);
  progress.clear_status();
  LogInfo("a job that does not run is cancelled", {{"job", job->name}});
  Note(progress, absl::ToUnixMicros(absl::Now()));
  job->feed->Publish(progress);
  Retire(job);
}

void Coordinator::Count(Job* job, v1::JobState state) {
  if (options_.metrics == nullptr) return;
  options_.metrics->CountJob(std::exchange(job->counted, state), state);
}

void Coordinator::Note(const v1::JobProgress& progress, int64_t time_micros) {
  {
    // A job that is being restored is counted when it is added.
    MutexLock lock(mutex_);
    const auto job = Find(progress.job());
    if (job != nullptr) Count(job.get(), progress.state());
  }
  const absl::Status stored = store_->Update(progress, time_micros);
  if (stored.ok()) return;
  LogError("a restart of the coordinator will not know of a job's change",
           {{"job", progress.job()}, {"status", stored}});
  if (!IsOver(progress.state())) return;
  MutexLock lock(mutex_);
  jobs_queue_.PostAfter(options_.store_retry, [this, progress, time_micros,
                                               job = Find(progress.job())] {
    const auto is_latest = [&] {
      MutexLock lock(mutex_);
      return job != nullptr && Find(progress.job()) == job;
    };
    // Otherwise it was forgotten, or submitted again.
    if (is_latest()) Note(progress, time_micros);
  });
}

absl::Status Coordinator::Restore(const std::string& directory) {
  ASSIGN_OR_RETURN(store_, JobStore::Open(directory));
  durable_ = true;
  ASSIGN_OR_RETURN(std::vector<StoredJob> jobs, store_->Jobs());
  ASSIGN_OR_RETURN(const std::vector<StoredModel> models, store_->Models());
  ASSIGN_OR_RETURN(const std::vector<StoredModel> previous,
                   store_->PreviousModels());
  ASSIGN_OR_RETURN(const auto placements, store_->Placements());
  // The clock may be behind the previous coordinator's.
  for (const auto& [session, placement] : placements) {
    placement_version_ =
        std::max(placement_version_.load(), placement.version());
  }
  const int64_t now = absl::ToUnixMicros(absl::Now());
  for (StoredJob& job : jobs) {
    Caller& submitter = job.submitter.caller;
    if (submitter.name.empty() && !options_.asks_callers) {
      submitter.grants = AllGrants();
    }
    const bool begun = job.progress.attempt() > 0;
    if (!IsOver(job.progress.state()) && begun) {
      job.progress.set_state(v1::JOB_STATE_QUEUED);
      *job.progress.mutable_status() = ToProtoStatus(
          absl::UnavailableError("the coordinator was started again"));
      Note(job.progress, now);
      LogInfo("a job goes on", {{"job", job.job.name}});
    }
    AddJob(job, begun, /*judged=*/false);
  }
  // Before members can join: routers are told which models they will serve.
  std::set<std::string> awaited = served_.Names();
  for (const StoredModel& model : models) awaited.insert(model.request.name);
  served_.SetAwaited(std::move(awaited));
  serving_queue_.Post([this, models, previous, placements] {
    for (const auto& [session, placement] : placements) {
      for (const v1::WorkerPlacement& worker : placement.workers()) {
        awaited_workers_.insert(worker.name());
      }
    }
    served_.SetKept(placements);
    for (const StoredModel& model : previous) {
      // Models of the command line have no predecessor.
      if (initial_models_.contains(model.request.name)) continue;
      served_.SetPrevious(model.request);
    }
    for (const StoredModel& model : models) {
      const std::string& name = model.request.name;
      // The command line takes precedence: it may have replaced this one, which
      // then was on no member any more.
      const bool is_placed =
          placements.contains(absl::StrCat(name, "@", model.request.version));
      if (is_placed || !initial_models_.contains(name)) {
        restored_models_[name] = model;
      }
      // Without a models file all names are free.
      if (!model.from_file || options_.models_file.empty()) continue;
      file_models_[name] = model.request;
      if (restored_models_.contains(name)) {
        unserved_file_models_.insert(name);
      }
    }
    CountFileModels();
    TellAwaited();
    ServeInitialModels();
  });
  serving_queue_.PostAfter(options_.lease, [this] {
    awaited_workers_.clear();
    ServeInitialModels();
  });
  jobs_queue_.Post([this] { StartNextJob(); });
  return absl::OkStatus();
}

}  // namespace gshard
