// JobAttempt: one attempt at a training job, with its own session:
//
//   load -> step, step, ... -> checkpoint
//
// Some steps are followed by validation: microbatches of held-out text go to
// routers, which run them forward and reply with the sums.
//
// A step: routers run microbatches, push dense gradients and reply; workers
// prepare, i.e. report their norms; the step is scaled and committed.
// Microbatches of a router that is lost, or fails temporarily, are rerun with
// the same result; routers that join help.
//
// A lost worker's experts are lost with it, which ends the attempt. With
// buddies the others then write its state, and without a loss all write their
// own: see Rescue(). If routers own the dense parameters (see DenseReduction),
// losing one ends the attempt, too, but nothing is then written.
//
// Everything runs on the job's thread. A blocking call returns an error if an
// event ends the attempt meanwhile, and exit() says how.

#ifndef SERVICES_COORDINATOR_TRAINING_JOB_ATTEMPT_H_
#define SERVICES_COORDINATOR_TRAINING_JOB_ATTEMPT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/coordinator/training/checkpoint_write.h"
#include "services/coordinator/training/dense_parameters.h"
#include "services/coordinator/training/dense_reduction.h"
#include "services/coordinator/training/fan_out.h"
#include "services/coordinator/training/job_context.h"
#include "services/coordinator/training/job_routers.h"
#include "services/coordinator/training/microbatch_schedule.h"
#include "services/coordinator/training/shard_holders.h"
#include "services/rpc/wire/trace_context.h"
#include "services/train/schedule.h"
#include "services/train/step_scale.h"
#include "services/train/step_statistics.h"

namespace gshard {

class JobAttempt {
 public:
  // How an attempt ends without finishing the job, which continues unless it
  // has failed.
  enum class Exit {
    kFailed,
    kLost,       // a member with its state was lost, or is unusable
    kAway,       // the disk or store of the job's folder is away
    kDeserted,   // no router is left for the open step, and the job is to stop
                 // or a worker waits to leave
    kDamaged,    // a member found the checkpoint damaged
    kNotFinite,  // the last step, which is to be skipped
    kChanged,    // the next one has other members: at a checkpoint, as some
                 // join or leave, or one could not load; or a checkpoint of a
                 // step that is made again is there
  };

  // Runs `plan`; `routers` own the dense parameters if they reduce. `context`
  // outlives this.
  JobAttempt(JobContext* context, SessionPlan plan, TrainingStart start,
             const std::vector<Member>& routers);
  ~JobAttempt() { stop_loading_.request_stop(); }

  // Loads `checkpoint` (null: from the job's seed), and trains until the last
  // checkpoint is written. Errors: those of JobContext::Await(); the reason why
  // the attempt ended.
  absl::Status Run(std::unique_ptr<CheckpointReader> checkpoint);
  Exit exit() const { return exit_; }

  // The last step that counts as done.
  int64_t committed() const { return committed_; }
  // Whether members had loaded, and steps began.
  bool trained() const { return trained_; }
  size_t num_workers() const { return plan_.workers.size(); }
  // Routers that own dense parameters.
  size_t num_owners() const { return holders_.size() - num_workers(); }

  // Tells members to drop the session, at once or, with `in_order`, after its
  // queued commands, unless they still load it; and abandons an unfinished
  // checkpoint.
  std::shared_ptr<const MemberReplies> Release(bool in_order = false);

 private:
  // Loading.
  absl::Status Load(const std::shared_ptr<const CheckpointReader>& checkpoint);
  absl::Status LoadDense(
      const std::shared_ptr<const CheckpointReader>& checkpoint);
  void Publish() const;

  // Waiting: as JobContext::Await(), and handles members and the checkpoint
  // meanwhile.
  absl::Status Await(const std::function<bool()>& done,
                     MonotonicTime until = MonotonicTime::InfiniteFuture());
  // Waits until all have replied.
  absl::StatusOr<std::vector<v1::CommandReply>> AwaitAll(
      std::shared_ptr<const MemberReplies> replies);
  absl::Status CheckMembers();
  absl::Status PollRouters();
  absl::Status PollCheckpoint();
  absl::Status Leave(Exit exit, const absl::Status& why);
  // Whether the job continues without a member that could not load; the next
  // attempt does not use it.
  bool DoesWithout(const MemberKey& member, MemberRole role,
                   const absl::Status& status);
  // A member's error: ends the attempt, by `exit` unless one was lost, or fails
  // the job.
  absl::Status OnMemberFailed(const absl::Status& status,
                              Exit exit = Exit::kLost);
  // The same for an error with a checkpoint: of a member that reads or writes
  // its part, and of the coordinator.
  absl::Status OnMemberStorageFailed(const absl::Status& status);
  absl::Status OnStorageFailed(const absl::Status& status);

  // Steps: job_step.cc.
  absl::Status MakeStep();
  absl::Status RunPhases();
  // The completed microbatches.
  struct Ran {
    StepStatistics sums;
    std::vector<int32_t> attempts;  // the ones that count, by microbatch
    std::vector<int32_t> by;        // ranks of owners; -1: none
  };
  // Runs the microbatches of the step or of the held-out text; not all of the
  // latter if GivesUpValidation().
  absl::StatusOr<Ran> RunMicrobatches(int32_t count, int32_t window,
                                      bool validation);
  // Why what is trained should soon be in a checkpoint, so that a step for
  // which no router is left is given up; empty: there is time.
  std::string WhyHurry() const;
  std::shared_ptr<const MemberReplies> Assign(const Assignment& assignment,
                                              bool validation);
  // The router's statistics of a microbatch.
  absl::StatusOr<StepStatistics> StatisticsOf(
      const Assignment& assignment, bool validation,
      const v1::MicrobatchDone& done) const;
  // Handles a failed microbatch: an error ends the attempt; otherwise returns
  // when to release it again.
  absl::StatusOr<MonotonicTime> OnMicrobatchFailed(
      const Assignment& assignment, const absl::Status& status,
      MicrobatchSchedule* schedule);
  // The norms of all gradients.
  absl::StatusOr<std::vector<SquaredNorm>> Prepare(const Ran& ran);
  // The factors of the step; null: it is skipped.
  absl::StatusOr<std::optional<StepScale>> Scale(std::vector<SquaredNorm> norms,
                                                 const StepStatistics& sums);
  absl::Status Commit(const std::optional<StepScale>& scale);
  // Ends a phase of the step, begun at the last call.
  void EndPhase(const char* phase);

  // The loop of steps: job_training.cc.
  absl::Status Train();
  // Reports the committed step. Returns whether the job ends with it.
  bool CountStep(bool skipped);
  // Makes this step the job's last one, also for the next coordinator.
  void EndHere();
  // Of a job with a time limit and a cooldown: sets its last step once what is
  // left of the time is enough for the cooldown only.
  void PlanLastStep(MonotonicTime now);
  bool CheckpointDue() const;
  // Whether to validate now; `over`: it is the last step.
  bool ValidationDue(bool over) const;
  // Whether it takes time that there may not be: for the last step there is.
  bool GivesUpValidation() const;
  absl::Status Validate();
  // Waits until no checkpoint is being written.
  absl::Status AwaitCheckpoint();
  // Starts writing the checkpoint of `step`, without the workers `lost`.
  void BeginCheckpoint(int64_t step, const std::set<size_t>& lost = {});
  void DropCheckpoint();
  void OnCheckpointWritten();
  // Whether the job is done, not parked, once its last step is in a checkpoint.
  bool IsDone() const;
  // Call when the last step is in a checkpoint, so that the attempt may end
  // without loss; an error if it ends.
  absl::Status AtCheckpoint();
  // A leaving worker that holds experts; empty if there is none.
  std::string LeavingHolder() const;
  // Which eligible members have joined, or are leaving; empty if none.
  std::string MembersHaveChanged() const;

  // Losses: job_rescue.cc. Workers, by their index in the plan, that are no
  // longer members.
  std::set<size_t> LostWorkers() const;
  // Whether the others have all state, that of the workers `lost` included.
  bool HaveAllStateWithout(const std::set<size_t>& lost) const;
  // The attempt was ended by `cause`. Has the remaining workers write a
  // checkpoint of the last committed step, unless there is one or they cannot.
  // Returns OK if the job is thereby done, else usually `cause`.
  absl::Status Rescue(const absl::Status& cause);
  // Waits for the checkpoint being written, whatever happens meanwhile;
  // writing_ is then null, unless that has failed.
  absl::Status FinishCheckpoint();
  // Writes that of the last committed step without the workers `lost`. OK if
  // there is one.
  absl::Status WriteRescue(std::set<size_t> lost, const absl::Status& cause);

  JobContext* const context_;
  SessionPlan plan_;
  const TrainingStart start_;
  Schedule schedule_;
  std::stop_source stop_loading_;
  std::unique_ptr<DenseReduction> reduction_;  // null if dense_ is set
  std::shared_ptr<DenseParameters> dense_;
  std::vector<ShardHolder> holders_;     // workers, then routers
  std::unique_ptr<JobRouters> routers_;  // once workers have loaded
  std::unique_ptr<CheckpointWrite> writing_;
  Exit exit_ = Exit::kFailed;
  bool trained_ = false;

  // State of the current or the last step.
  int64_t committed_;
  int64_t step_;
  TraceContext step_trace_;  // trace of the last MakeStep()
  StepResult result_;
  MonotonicTime phase_began_;
  v1::CommitStep commit_;  // the last one sent, if any
  bool counted_ = true;    // commit_'s step has been reported
  bool last_step_ = false;
  bool validating_ = false;
  // The last validation of the attempt; a loss that is not finite is left out.
  int64_t validated_step_ = 0;
  std::optional<double> validation_loss_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_JOB_ATTEMPT_H_
