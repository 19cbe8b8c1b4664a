// JobRunner: one training job from its submission to its end.
//
//   wait for members -> load -> step, step, ... -> checkpoint -> serve -> over
//
// Some steps are followed by validation: microbatches of held-out text go to
// routers, which run them forward and reply with the sums; see
// job_validation.cc.
//
// A step: microbatches go to routers, which push dense gradients and reply;
// workers prepare, i.e. report their norms; the step is scaled and committed.
// A router that is lost, or fails for a passing reason, has its microbatches
// run again, with the same result; routers that join help.
//
// A lost worker takes its experts' weights with it. The members that are left
// then drop the session, and a new attempt, which is a session of its own,
// loads from the last checkpoint what workers there are: see job_recovery.cc.
// What comes late of an earlier attempt finds no session. Workers that join
// later get experts at the next checkpoint.
//
// With another `reduce` than the coordinator's, routers own the dense
// parameters (see DenseReduction), and all that is said of workers holds for
// them, too.
//
// What happens is a function of the messages and the clock: nothing polls.

#ifndef SERVICES_COORDINATOR_JOB_RUNNER_H_
#define SERVICES_COORDINATOR_JOB_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "services/base/monotonic_time.h"
#include "services/coordinator/dense_parameters.h"
#include "services/coordinator/dense_reduction.h"
#include "services/coordinator/fan_out.h"
#include "services/coordinator/job_checkpoint.h"
#include "services/coordinator/job_preparation.h"
#include "services/coordinator/job_reporter.h"
#include "services/coordinator/job_tokenizers.h"
#include "services/coordinator/microbatch_schedule.h"
#include "services/coordinator/session_plan.h"
#include "services/train/schedule.h"
#include "services/train/step_scale.h"

namespace gshard {

struct JobEnvironment {
  Members* members = nullptr;
  // Runs everything of the job.
  TaskQueue* queue = nullptr;
  // Does what waits for disks: prepares the job, and writes its checkpoints.
  // Stopped after `queue`, which may wait for it.
  TaskQueue* disk = nullptr;
  // Sums gradients; runs as long as calls are served.
  TaskQueue* sums = nullptr;
  TrainingMetrics* metrics = nullptr;  // may be null
  int64_t memory_bytes = 0;            // of this process; 0: unknown
  std::function<MonotonicTime()> clock = MonotonicTime::Now;
  // A number that grows with each call.
  std::function<int64_t()> next_placement_version;
  // Called on `queue` when the job's state or attempt has changed, before the
  // attempt begins; and once it is over or parked.
  std::function<void(const v1::JobProgress&)> on_change =
      [](const v1::JobProgress&) {};
  // Checkpoints that others need, which stay whatever the job keeps.
  std::function<std::vector<std::string>()> checkpoints_in_use = [] {
    return std::vector<std::string>();
  };
  FaultPoints* faults = nullptr;  // see services/checkpoint/file.h
  // Called on `queue` when a checkpoint has been written, with what a restart
  // goes on from: the time that training has taken.
  std::function<void(const v1::JobProgress&)> on_checkpoint =
      [](const v1::JobProgress&) {};
  // Serves a checkpoint under the job's name for it; calls back on `queue`.
  std::function<void(const std::string& directory,
                     std::function<void(const absl::Status&)> done)>
      serve;
};

struct JobSettings {
  TrainingJob job;  // validated
  bool resume = false;
  // The first attempt's number: higher than any before of the job's name.
  int64_t attempt = 1;
  // The job was running when an earlier coordinator ended: it may be done but
  // for the word of it.
  bool restored = false;
  // Stop() parks the job for the next coordinator instead of ending it.
  bool durable = false;

  ReduceWay reduce = ReduceWay::kCoordinator;

  absl::Duration microbatch_timeout = absl::Minutes(10);
  // For a message between routers, the wait for who is slower included.
  absl::Duration reduce_timeout = absl::Minutes(2);
  // Before a microbatch that failed is run again; doubles with each failure.
  absl::Duration retry_delay = absl::Milliseconds(50);
  int32_t max_attempts = 8;
  // Before a router that could not load the job, and is there, is asked again.
  absl::Duration reload_delay = absl::Seconds(1);
};

// Whether doing the same again may help: somebody was lost or too slow.
bool IsPassing(const absl::Status& status);

class JobRunner {
 public:
  // `feed` outlives this.
  JobRunner(JobSettings settings, JobEnvironment environment,
            ProgressFeed* feed);

  // On the queue:

  void Start();
  void OnMembersChanged();
  // Ends the job now; it is then over.
  void Cancel();
  // Ends it after the step that is being run, with a checkpoint; without one if
  // no step is. A durable job is parked, i.e. queued again.
  void Stop();
  // Nothing more comes of it: it is over or parked.
  bool ended() const { return phase_ == Phase::kEnded; }
  // It is over, and nobody calls it back any more: it may go.
  bool idle() const;

  // On any thread:

  // The coordinator is about to send its members away: that they go is no loss
  // any more, and nothing is noted of the job from here on.
  void Halt() {
    halted_ = true;
    stop_preparing_.request_stop();
  }

  // Null unless training is loaded and the coordinator reduces.
  std::shared_ptr<DenseParameters> dense() const;
  const std::string& checkpoint_directory() const {
    return settings_.job.checkpoint.directory;
  }
  // Nothing unless members hold something of the job.
  std::optional<v1::SessionInfo> Describe() const;

 private:
  enum class Phase {
    kWaiting,    // for members
    kReleasing,  // for members to drop the attempt before
    kLoadingWorkers,
    kLoadingRouters,
    kMicrobatches,
    kPreparing,
    kCommitting,
    kValidating,
    kCheckpointing,
    kRescuing,  // as that, with workers lost
    kServing,
    kEnded
  };
  enum class RouterState {
    kLoading,
    kReady,
    kLeftOut,  // of a release that runs other segments
  };

  // A checkpoint that is being written.
  struct CheckpointWrite {
    int64_t step = 0;
    std::optional<double> validation_loss;
    std::vector<std::string> members;  // that write shards
    std::vector<NamedTensor> dense;    // let go on the queue
    std::vector<TensorEntry> entries;
    int shards_missing = 1;  // the members', taken as one, and the dense one
    std::atomic<bool> abandoned = false;
    std::string path;  // once it is committed; of the disk's thread
  };

  // Runs `step` on the queue unless another attempt has begun; an error fails
  // the job, unless it is a member's that passes.
  OnReplies OnQueue(
      std::function<absl::Status(std::vector<v1::CommandReply>)> step);
  void Do(const absl::Status& status);  // fails the job unless OK
  // Of a member, in this attempt: begins another, or fails the job.
  void OnMemberFailed(const absl::Status& status);
  // Whether the attempt goes on that was there at the time of the call. Whoever
  // may call back holds one.
  std::function<bool()> StillThisAttempt() const;
  void SetState(v1::JobState state, const absl::Status& status = {},
                bool retryable = false);

  void OnJobPrepared(PreparedJob prepared);
  void OnStartFound(ResumePoint point);
  void StartFrom(ResumePoint point);
  bool EnoughMembers() const;
  // Memory for dense parameters; 0 if they are the routers'.
  int64_t DenseBytes() const;
  void TryLoad();
  absl::Status LoadWorkers(const std::vector<Member>& workers);
  void LoadRouters();
  void OnRouterLoaded(const MemberKey& router,
                      const absl::StatusOr<v1::CommandReply>& reply);
  // Lets the routers that own dense parameters meet, and begins.
  void ConnectRouters();
  // Whether the router reads the text that the others do.
  absl::Status OnTextLoaded(const MemberKey& router,
                            const v1::SessionLoaded& loaded);
  void ReconcileMembers();
  void BeginTraining();

  // Begins another attempt from the last checkpoint, since `cause` has undone
  // this one. Fails the job if that happens without progress.
  void Recover(const absl::Status& cause);
  // The same from the checkpoint before step_, which was not finite and is left
  // out with all steps since.
  void RollBack(const absl::Status& cause);
  // With buddies: has the workers that are left write a checkpoint of the last
  // step committed, and begins the next attempt from that. False if they
  // cannot, or there is one already.
  bool Rescue(const absl::Status& cause);
  // Workers of the session, by their place in the plan, that are no members.
  std::set<size_t> LostWorkers() const;
  void OnRescueFailed(const absl::Status& cause, const absl::Status& status);
  // Spreads the experts over workers that have joined, and dense parameters
  // over routers that own them. REQUIRES: the last step is in a checkpoint.
  bool Rebalance();
  // Which have joined that would take part; empty if none.
  std::string MembersHaveJoined() const;
  void BeginAttempt(const absl::Status& cause);
  void OnReleased();
  // Until so many are there, or replacement_wait is over; TryLoad() follows.
  void AwaitWorkers(size_t wanted);
  // Finds out where the attempt starts; TryLoad() follows.
  void FindStart();

  void BeginStep();
  // What the step did since the last call is over.
  void EndPhase(const char* phase);
  // Hands out `count` microbatches, of the step or of the held-out text.
  void BeginMicrobatches(Phase phase, int32_t count);
  bool RunsMicrobatches() const {
    return phase_ == Phase::kMicrobatches || phase_ == Phase::kValidating;
  }
  void Dispatch();
  void OnMicrobatch(const Assignment& assignment,
                    const absl::StatusOr<v1::CommandReply>& reply);
  absl::Status OnMicrobatchDone(const Assignment& assignment,
                                const v1::CommandReply& reply);
  void OnMicrobatchFailed(const Assignment& assignment,
                          const absl::Status& status);
  void PrepareStep();
  absl::Status OnPrepared(const std::vector<v1::CommandReply>& replies);
  absl::Status AddWorkerNorms(absl::Span<const v1::CommandReply> replies,
                              std::vector<SquaredNorm>* norms) const;
  absl::Status CheckFinite(const std::vector<SquaredNorm>& norms) const;
  absl::Status OnNotFinite(const absl::Status& what);
  // Commits the step; null: skips it.
  void Commit(const StepScale* scale);
  absl::Status OnCommitted(bool skipped);
  // Tells of the step that is committed. Returns whether the job ends with it.
  bool CountStep(bool skipped);
  bool CheckpointDue() const;
  // Whether the held-out text is measured after step_; `over`: it is the last.
  bool ValidationDue(bool over) const;
  void BeginValidation();
  absl::Status OnValidated();
  // The step, and its validation, are done.
  void AfterStep();
  // Begins to write the last step's checkpoint, and goes on with the next step
  // at once if nothing needs the checkpoint before.
  void WriteCheckpoint();
  // Begins to write `step`, without the workers `lost`. `on_shards` gets the
  // others' shards, or why there will be none.
  void BeginCheckpoint(int64_t step, const std::set<size_t>& lost,
                       OnReplies on_shards);
  void WriteDense();
  absl::Status OnShards(const std::vector<v1::CommandReply>& replies);
  void OnShard(std::vector<TensorEntry> entries);
  void OnCheckpointWritten();
  void OnCheckpointDone();
  // Calls `next` once no checkpoint is being written; no step is run before.
  void AfterCheckpoint(std::function<void()> next);
  // Gives up what is being written, and leaves nothing of it; or all of it, if
  // it is nearly done.
  void DropCheckpoint();
  // Runs `work` for what is being written on the disk's thread, then `done`
  // here, unless another attempt has begun. An error of it fails the job.
  template <typename Result>
  void OnDisk(std::function<absl::StatusOr<Result>()> work,
              std::function<absl::Status(absl::StatusOr<Result>)> done);
  void Serve();
  // Lets go of all that the job has.
  void End();
  // Ends the job, or parks it in the state QUEUED.
  void Finish(v1::JobState state, const absl::Status& status = {});
  void Fail(const absl::Status& status, bool retryable);
  // What all members of this attempt are told, to drop it.
  MemberCommands Abort() const;
  void Forget();

  // -1 if nothing is loaded.
  int64_t CommittedStep() const;

  // One command for each worker of the session.
  MemberCommands ForWorkers(
      const std::function<void(size_t w, v1::Command*)>& fill) const;

  const JobSettings settings_;
  const JobEnvironment env_;
  TrainingJob job_;  // with the tokenizers' vocabulary sizes, once prepared
  const Schedule schedule_;
  std::unique_ptr<JobReporter> reporter_;

  Phase phase_ = Phase::kWaiting;
  bool prepared_ = false;  // this attempt knows where it starts
  std::stop_source stop_preparing_;
  bool trained_ = false;  // by an earlier coordinator
  bool stop_ = false;
  std::atomic<bool> halted_{false};
  int64_t attempt_;
  std::shared_ptr<const bool> held_ = std::make_shared<bool>();  // see idle()

  // Of recovery; see job_recovery.cc.
  int64_t recoveries_ = 0;                 // in a row without progress
  int64_t best_step_ = -1;                 // committed at the last of them
  int64_t nonfinite_in_a_row_ = 0;         // steps
  std::set<size_t> lost_;                  // workers, while rescuing
  bool again_ = false;                     // this attempt is not the first
  size_t workers_wanted_ = 0;              // by it
  size_t routers_wanted_ = 1;              // by it
  bool wanted_in_vain_ = false;            // the time to wait for them is over
  std::optional<TrainingStart> rollback_;  // where it starts, if chosen
  TrainingStart start_;
  JobTokenizers tokenizers_;
  absl::Duration time_to_index_;
  std::shared_ptr<FolderClaim> claim_;            // once prepared
  std::unique_ptr<CheckpointReader> checkpoint_;  // to start from
  std::string checkpoint_path_;                   // the last one written
  int64_t checkpoint_step_ = 0;                   // its step
  std::map<MemberKey, RouterState> routers_;
  std::unique_ptr<DenseReduction> reduction_;  // or dense_

  // What the first router has read; nothing of routers that do not say.
  std::optional<v1::TextLoaded> text_;

  // Of the step being run.
  int64_t step_ = 0;
  std::unique_ptr<MicrobatchSchedule> microbatches_;
  std::vector<StepStatistics> statistics_;
  GradientList gradients_;
  std::vector<SquaredNorm> dense_norms_;
  StepResult result_;
  MonotonicTime phase_began_;
  std::optional<double> validation_loss_;  // with its parameters
  MonotonicTime validation_began_;
  bool last_step_ = false;
  v1::CommitStep commit_;  // of the last step committed, or being so

  // The checkpoint being written, or null, and what waits for it, or null.
  std::shared_ptr<CheckpointWrite> writing_;
  std::function<void()> after_checkpoint_;

  mutable std::mutex mutex_;
  std::string session_;                           // changed under mutex_
  std::shared_ptr<DenseParameters> dense_;        // changed under mutex_
  SessionPlan plan_;                              // changed under mutex_
  std::optional<v1::SessionInfo::State> loaded_;  // guarded by mutex_
  std::vector<std::string> ready_routers_;        // guarded by mutex_
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_JOB_RUNNER_H_
