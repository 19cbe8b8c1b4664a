// JobRunner: one training job from its submission to its end.
//
//   wait for members -> load -> step, step, ... -> checkpoint -> serve -> over
//
// A step: microbatches go to routers, which push dense gradients and reply;
// workers prepare, i.e. report their norms; the step is scaled and committed.
// A router that is lost, or fails for a passing reason, has its microbatches
// run again, with the same result; routers that join help. A lost worker takes
// its experts' weights with it: the job fails, and is resumed from its last
// checkpoint by submitting it again.
//
// What happens is a function of the messages and the clock: nothing polls.

#ifndef SERVICES_COORDINATOR_JOB_RUNNER_H_
#define SERVICES_COORDINATOR_JOB_RUNNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/coordinator/dense_parameters.h"
#include "services/coordinator/fan_out.h"
#include "services/coordinator/job_checkpoint.h"
#include "services/coordinator/job_reporter.h"
#include "services/coordinator/job_tokenizers.h"
#include "services/coordinator/microbatch_schedule.h"
#include "services/coordinator/session_plan.h"

namespace gshard {

struct JobEnvironment {
  Members* members = nullptr;
  // Runs everything of the job.
  TaskQueue* queue = nullptr;
  TrainingMetrics* metrics = nullptr;  // may be null
  std::function<absl::Time()> clock = absl::Now;
  // A number that grows with each call.
  std::function<int64_t()> next_placement_version;
  // Serves a checkpoint under a name; calls back on `queue`.
  std::function<void(const std::string& name, const std::string& directory,
                     std::function<void(const absl::Status&)> done)>
      serve;
};

struct JobSettings {
  TrainingJob job;  // validated
  bool resume = false;
  // Tells this run of the job from earlier ones of its name.
  int64_t attempt = 1;

  absl::Duration microbatch_timeout = absl::Minutes(10);
  // Before a microbatch that failed is run again; doubles with each failure.
  absl::Duration retry_delay = absl::Milliseconds(50);
  int32_t max_attempts = 8;
};

class JobRunner {
 public:
  JobRunner(JobSettings settings, JobEnvironment environment);

  // On the queue:

  void Start();
  void OnMembersChanged();
  // Ends the job now; it is then over.
  void Cancel();
  // Ends it after the step that is being run, with a checkpoint; without one if
  // no step is.
  void Stop();
  bool over() const { return phase_ == Phase::kOver; }

  // On any thread:

  ProgressFeed& feed() { return feed_; }
  // Null unless training is loaded.
  std::shared_ptr<DenseParameters> dense() const;
  // Nothing unless members hold something of the job.
  std::optional<v1::SessionInfo> Describe() const;

 private:
  enum class Phase {
    kWaiting,  // for members
    kLoadingWorkers,
    kLoadingRouters,
    kMicrobatches,
    kPreparing,
    kCommitting,
    kCheckpointing,
    kServing,
    kOver
  };
  enum class RouterState { kLoading, kReady };

  // Runs `step` on the queue unless the job is over; an error fails the job.
  OnReplies OnQueue(
      std::function<absl::Status(std::vector<v1::CommandReply>)> step);
  void Do(const absl::Status& status);  // fails the job unless OK

  absl::Status Prepare();
  void TryLoad();
  absl::Status LoadWorkers(const std::vector<Member>& workers);
  void LoadRouters();
  void OnRouterLoaded(const MemberKey& router,
                      const absl::StatusOr<v1::CommandReply>& reply);
  void ReconcileMembers();

  void BeginStep();
  void Dispatch();
  void OnMicrobatch(const Assignment& assignment,
                    const absl::StatusOr<v1::CommandReply>& reply);
  absl::Status OnMicrobatchDone(const Assignment& assignment,
                                const v1::CommandReply& reply);
  void OnMicrobatchFailed(const Assignment& assignment,
                          const absl::Status& status);
  void PrepareStep();
  absl::Status OnPrepared(const std::vector<v1::CommandReply>& replies);
  absl::Status AddWorkerNorms(const std::vector<v1::CommandReply>& replies,
                              std::vector<SquaredNorm>* norms) const;
  absl::Status OnCommitted();
  absl::Status WriteCheckpoint();
  absl::Status OnCheckpointWritten(
      const std::vector<v1::CommandReply>& replies);
  void OnCheckpointDone();
  void Serve();
  void Finish(v1::JobState state, const absl::Status& status = {});

  // One command for each worker of the session.
  MemberCommands ForWorkers(
      const std::function<void(size_t w, v1::Command*)>& fill) const;

  const JobSettings settings_;
  const JobEnvironment env_;
  TrainingJob job_;  // with the tokenizers' vocabulary sizes, once prepared
  const std::string session_;
  const Schedule schedule_;
  ProgressFeed feed_;
  std::unique_ptr<JobReporter> reporter_;

  Phase phase_ = Phase::kWaiting;
  bool prepared_ = false;
  bool stop_ = false;
  TrainingStart start_;
  JobTokenizers tokenizers_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // to start from
  std::string checkpoint_path_;                   // the last one written
  absl::Time first_step_time_ = absl::InfiniteFuture();
  std::map<MemberKey, RouterState> routers_;

  // Of the step being run.
  int64_t step_ = 0;
  std::unique_ptr<MicrobatchSchedule> microbatches_;
  std::vector<StepStatistics> statistics_;
  GradientList gradients_;
  std::vector<SquaredNorm> dense_norms_;
  StepResult result_;
  bool last_step_ = false;
  std::vector<TensorEntry> dense_entries_;

  mutable std::mutex mutex_;
  std::shared_ptr<DenseParameters> dense_;        // changed under mutex_
  SessionPlan plan_;                              // changed under mutex_
  std::optional<v1::SessionInfo::State> loaded_;  // guarded by mutex_
  std::vector<std::string> ready_routers_;        // guarded by mutex_
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_JOB_RUNNER_H_
