// Coordinator: membership, training jobs and served models behind one
// interface. The RPCs of CoordinatorService, without gRPC.

#ifndef SERVICES_COORDINATOR_COORDINATOR_H_
#define SERVICES_COORDINATOR_COORDINATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/base/task_queue.h"
#include "services/coordinator/folders/folder_limits.h"
#include "services/coordinator/folders/path_rights.h"
#include "services/coordinator/membership/members.h"
#include "services/coordinator/preparation/job_checkpoint.h"
#include "services/coordinator/serving/models_file.h"
#include "services/coordinator/serving/served_models.h"
#include "services/coordinator/serving/serving_gauges.h"
#include "services/coordinator/store/job_store.h"
#include "services/coordinator/training/job_run.h"
#include "services/rpc/security/audit.h"
#include "services/rpc/security/caller.h"

namespace gshard {

struct CoordinatorOptions {
  absl::Duration lease = absl::Seconds(5);
  absl::Duration command_timeout = absl::Minutes(10);  // see MembersOptions
  absl::Duration load_timeout = absl::Hours(2);        // likewise
  bool allow_mixed_devices = false;                    // likewise
  std::function<MonotonicTime()> clock = MonotonicTime::Now;
  Tracer tracer = {};
  std::string build_version = {};
  TrainingMetrics* metrics = nullptr;  // may be null
  GaugeFamily member_counts = {};      // by role; may be unset
  ServingGauges serving_gauges = {};   // may be unset

  // Models to serve from the start, once enough members have joined; for those
  // restored one of each role is enough.
  std::vector<ModelRequest> models = {};
  int64_t min_routers = 1;
  int64_t min_workers = 1;

  // Lists further models to serve; empty: none. See models_file.h.
  std::string models_file = {};
  absl::Duration models_file_interval = absl::Seconds(1);
  Gauge models_file_rejected = {};      // 0 or 1; may be unset
  GaugeFamily models_file_models = {};  // by state; likewise

  // Default replicas per expert, 1 to kMaxReplicas.
  int64_t replicas = 1;

  // See ServedModels::Options.
  absl::Duration watch_interval = absl::Seconds(10);
  absl::Duration load_half_life = absl::Minutes(1);
  // Pause before members that could not load a served model are asked again,
  // and before initial models that could not be served are retried.
  absl::Duration serving_retry = kServingRetryPause;

  // Maximum unfinished jobs, 1 to kMaxJobs. A submitter that has some may have
  // twice as many as it leaves free.
  int64_t max_jobs = 256;

  // Pause before the final state of a job that could not be stored is stored
  // again.
  absl::Duration store_retry = absl::Seconds(10);

  // For jobs; see JobSettings.
  ReduceWay reduce = ReduceWay::kCoordinator;
  absl::Duration retry_delay = absl::Milliseconds(50);
  FaultPoints* faults = nullptr;  // for checkpoints

  // Where jobs' files and checkpoints to load may be; see PathRights.
  std::vector<std::string> data_roots = {};
  PathResolver resolve = CanonicalPath;
  // OpenToServe(), or a fake in tests.
  std::function<absl::StatusOr<ServableCheckpoint>(const std::string&)>
      open_to_serve = OpenToServe;
  // Some callers have limited rights. A job accepted by an earlier release,
  // which did not record its submitter, then gets no name to serve.
  bool asks_callers = false;
};

// Thread-safe. Errors are those of the RPCs of the same names.
class Coordinator {
 public:
  template <typename Response>
  using Done = std::function<void(absl::StatusOr<Response>)>;

  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator() { Shutdown(); }

  // Restores the state of an earlier coordinator from `directory`, and stores
  // jobs and served models there from now on. A running job resumes from its
  // last checkpoint; queued jobs stay queued. Models are managed again when
  // their workers have joined, or after a lease: members keep serving them
  // meanwhile. Call once, before anything else; without it nothing outlives the
  // process. Errors: those of JobStore.
  absl::Status Restore(const std::string& directory);

  // From now on serves the models in the models file, if there is one, which
  // manages the names in it: calls and jobs that would load or unload them are
  // refused. Models whose names disappear from it are unloaded. Call once,
  // after Restore().
  void WatchModelsFile();

  Members& members() { return *members_; }

  // These don't block; `done` is called once, on any thread, or never if
  // Shutdown() comes first. Outcomes are audited. The requester's role has been
  // checked; its limits to models, paths and jobs are checked here.
  void SubmitJob(const v1::SubmitJobRequest& request, const Requester& who,
                 Done<v1::SubmitJobResponse> done);
  void CancelJob(const v1::CancelJobRequest& request, const Requester& who,
                 Done<v1::CancelJobResponse> done);
  void LoadModel(const v1::LoadModelRequest& request, const Requester& who,
                 Done<v1::LoadModelResponse> done);
  void UnloadModel(const v1::UnloadModelRequest& request, const Requester& who,
                   Done<v1::UnloadModelResponse> done);

  // Omits models and jobs that the caller may not see; see MayFollow() and
  // HideModels().
  absl::StatusOr<v1::ListJobsResponse> ListJobs(
      const v1::ListJobsRequest& request, const Caller& caller) const;
  v1::DescribeResponse Describe(const v1::DescribeRequest& request,
                                const Caller& caller) const;

  absl::StatusOr<std::shared_ptr<ProgressFeed>> WatchJob(
      const std::string& job, const Caller& caller) const;

  // The dense parameters of a training session.
  absl::StatusOr<std::shared_ptr<DenseParameters>> FindTraining(
      const std::string& session) const;

  // Stops the running job with a checkpoint, then all watches and members'
  // streams. A job that has not stopped after `grace` is halted without one,
  // which is logged. After Restore() jobs are parked instead of ended.
  void Drain(absl::Duration grace);

  // Ends everything else at once. No callbacks run afterwards.
  void Shutdown();

 private:
  struct Job {
    // These never change.
    std::string name;
    int64_t place = 0;  // in the order of submission
    int64_t submitted_micros = 0;
    JobOwnership ownership;
    std::shared_ptr<ProgressFeed> feed;
    // Settings of the job; null once it is finished.
    std::unique_ptr<const StoredJob> stored;
    bool restored = false;
    bool judged = false;   // its paths, by this coordinator; on jobs_queue_
    bool started = false;  // likewise
    std::unique_ptr<JobThread> thread;  // null unless it is running_
    // As counted in the metrics; under mutex_.
    v1::JobState counted = v1::JOB_STATE_UNSPECIFIED;
  };

  // The job as it would be queued: resolves its files, and the checkpoint to
  // resume from, as they are on disk now; on files_queue_. The caller of `who`
  // is `resolved`: see ResolveFolders().
  absl::StatusOr<StoredJob> ReadJob(const v1::SubmitJobRequest& request,
                                    const Requester& who,
                                    const Caller& resolved) const;
  // The step of the last checkpoint of an earlier submission of the job to the
  // same folder, which is over; 0: none is known to the caller.
  int64_t LastCheckpoint(const TrainingJob& job, const Caller& resolved) const;
  // On any thread; the result stays valid only on jobs_queue_.
  absl::Status CheckNew(const TrainingJob& job, bool resume,
                        const Caller& resolved) const;
  // Checks that it fits into the current workers, if they are enough for it.
  absl::Status CheckMemory(const TrainingJob& job) const;

  // Queues the job of the request, unless that is to validate only. On
  // jobs_queue_.
  absl::StatusOr<v1::SubmitJobResponse> AcceptJob(StoredJob stored,
                                                  bool validate_only,
                                                  const Caller& resolved);
  // Checks whether the submitter may queue one more job.
  absl::Status CheckQueue(const std::string& submitter) const;
  // `judged`: see Judge().
  void AddJob(const StoredJob& stored, bool restored, bool judged);
  // Moves a finished job without thread to the finished ones.
  void Retire(const std::shared_ptr<Job>& job);
  // Keeps only the last kMaxJobs finished ones.
  void ForgetOldJobs();
  void StartNextJob();
  // Judges the paths of a job that an earlier coordinator accepted, as they are
  // on disk now; the job fails if they are not (or no longer) allowed. Then
  // goes on with StartNextJob(). Disks may hang: one job is judged at a time.
  void Judge(const std::shared_ptr<Job>& job);
  void OnJudged(const std::shared_ptr<Job>& job, StoredJob stored,
                const absl::Status& may);
  // Cancels a job that has no thread, unless it is over.
  void CancelQueued(const std::shared_ptr<Job>& job);
  // The thread of running_ is about to end.
  void OnJobEnded();
  // Counts its state in the metrics.
  void Count(Job* job, v1::JobState state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records progress in the store; if that fails, the job continues without,
  // and a final state is recorded later: the next coordinator would run the job
  // again. See JobStore::Update.
  void Note(const v1::JobProgress& progress, int64_t time_micros);
  // Call before members are dismissed.
  void HaltJob();
  JobEnvironment MakeEnvironment(const StoredJob& job);
  // Serves a trained model, if the job's submitter is allowed to.
  void ServeTrained(const std::string& name, const std::string& directory,
                    const Requester& submitter, ServedModels::OnLoaded done);
  // Ends that, also while the checkpoint is being opened. Returns false if it
  // is too late.
  bool GiveUpServing(const std::string& name, const std::string& directory);
  // Checkpoints of models that are served, or will be, and those that jobs
  // begin with. Thread-safe.
  std::vector<std::string> CheckpointsInUse() const;

  // The latest job of the name; null if there is none.
  std::shared_ptr<Job> Find(const std::string& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Errors: NotFound; PermissionDenied if the caller may not follow it.
  absl::StatusOr<std::shared_ptr<Job>> FindFor(const Caller& caller,
                                               const std::string& job) const;
  // Jobs that the caller may follow, in listing order.
  std::vector<std::shared_ptr<const Job>> ListFor(const Caller& caller) const;

  void OnMembersChanged();
  void CountMembers();

  // Loads from an admitted folder; a rollback has none.
  void LoadFrom(const std::string& directory,
                const v1::LoadModelRequest& request,
                Done<v1::LoadModelResponse> done);
  // On serving_queue_, for a caller or a job.
  void Serve(const ModelRequest& request, ServedModels::OnLoaded done);
  bool IsLoading(const std::string& name) const;
  // Whether a caller or a job waits for a model of the name to be served.
  bool IsAsked(const std::string& name) const;
  // Stores a model, unless only the command line says to serve it. Errors: if a
  // caller waits for it; otherwise it is served without.
  absl::Status Keep(const ModelRequest& request,
                    const std::optional<ModelRequest>& previous);
  // Opens its checkpoint, then loads it; its name is awaited meanwhile.
  // `asked`: by a caller or a job.
  void Load(const StoredModel& model, bool asked, ServedModels::OnLoaded done);
  void ServeInitialModels();
  // Loads those of restored_models_ or initial_models_; those that fail go back
  // to it.
  void LoadWaiting(std::map<std::string, StoredModel>* waiting);
  // Retries later, once for all that failed until then.
  void RetryInitialModels();
  void OnInitialServed(const StoredModel& model, bool restored);
  // Whether models of the name wait to be served, or their checkpoints are
  // being opened; those of unknown version have any.
  bool IsWaiting(const std::string& name, const std::string& version) const;
  void ForgetWaiting(const std::string& name, const std::string& version);
  // Call when file_models_ or what waits or is being loaded has changed.
  void TellAwaited();

  // On checkpoints_queue_.
  void LookAtModelsFile();
  // These run on serving_queue_.
  void FollowModelsFile(std::vector<ModelRequest> wanted);
  // Errors: FailedPrecondition.
  absl::Status CheckNotInFile(const std::string& name) const;
  void CountFileModels() const;
  // Whether workers that held bundles of served models have not rejoined yet.
  bool AwaitsWorkers() const;
  // Whether the models file says something else of it, or nothing any more.
  bool IsSuperseded(const StoredModel& model) const;
  StoredModel ToStored(const ModelRequest& request) const;

  const CoordinatorOptions options_;
  const PathRights path_rights_;
  mutable FolderLimits folder_limits_;  // for gRPC's threads
  std::unique_ptr<JobStore> store_;
  bool durable_ = false;  // store_ outlives the process
  std::atomic<int64_t> placement_version_{0};
  std::atomic<bool> draining_{false};
  std::unique_ptr<Members> members_;
  ServedModels served_;
  // To be served once members have joined, by name: what an earlier coordinator
  // served, and what the command line or the models file says now. The former
  // goes first: it is maintained until its successor is served, which may never
  // be. Used on serving_queue_.
  std::map<std::string, StoredModel> restored_models_;
  std::map<std::string, StoredModel> initial_models_;
  // Calls of Load() under way, in order; likewise.
  struct Loading {
    StoredModel model;
    bool asked = false;
    bool opening = true;
  };
  std::map<int64_t, Loading> loading_;
  int64_t last_load_ = 0;  // key of loading_
  bool retrying_ = false;  // RetryInitialModels() has been posted; likewise
  // Content of the models file, by name, and names in it that are not served
  // yet; likewise.
  std::map<std::string, ModelRequest> file_models_;
  std::set<std::string> unserved_file_models_;
  bool follows_file_ = false;  // it has been read; likewise
  // Used on checkpoints_queue_.
  std::unique_ptr<ModelsFile> models_file_;
  absl::Status models_file_status_;
  std::set<std::string> awaited_workers_;  // by name; on serving_queue_

  mutable Mutex mutex_;
  std::vector<std::string> awaited_checkpoints_
      ABSL_GUARDED_BY(mutex_);  // of the models file, or wait or are loaded
  // The latest job of each name.
  std::map<std::string, std::shared_ptr<Job>> by_name_ ABSL_GUARDED_BY(mutex_);
  // Jobs that wait, run or are parked, in order of submission.
  std::vector<std::shared_ptr<Job>> open_ ABSL_GUARDED_BY(mutex_);
  // Names of finished jobs, by place.
  std::map<int64_t, std::string> over_ ABSL_GUARDED_BY(mutex_);
  int64_t last_place_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Job> running_;  // changed on jobs_queue_, under mutex_
  bool judging_ = false;          // used on jobs_queue_
  // Callbacks waiting for the end of running_; used on jobs_queue_.
  std::vector<std::function<void()>> on_ended_;

  // Last: their threads use the members above.
  TaskQueue files_queue_;        // resolves paths of submitted jobs
  TaskQueue checkpoints_queue_;  // opens checkpoints to serve
  TaskQueue disk_queue_;         // disk work of the running job
  TaskQueue sums_queue_;
  TaskQueue jobs_queue_;
  TaskQueue serving_queue_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_COORDINATOR_H_
