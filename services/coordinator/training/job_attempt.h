// JobAttempt: one attempt at a training job, which is a session of its own:
//
//   load -> step, step, ... -> checkpoint
//
// Some steps are followed by validation: microbatches of held-out text go to
// routers, which run them forward and reply with the sums.
//
// A step: microbatches go to routers, which push dense gradients and reply;
// workers prepare, i.e. report their norms; the step is scaled and committed.
// A router that is lost, or fails for a passing reason, has its microbatches
// run again, with the same result; routers that join help.
//
// A lost worker's experts are lost with it, which ends the attempt. With
// buddies the others then write its state: see Rescue(). With another `reduce`
// than the coordinator's, routers own the dense parameters (see
// DenseReduction), and all that is said of workers holds for them, too.
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
    kLost,       // a member, with what it had; or it is of no use
    kDamaged,    // is what was to be loaded, as some member has found
    kNotFinite,  // the last step, which is to be left out
    kChanged,    // at a checkpoint: members are to take part, or to leave
  };

  // As `plan` says, with the dense parameters of `routers` if these reduce.
  // `context` outlives this.
  JobAttempt(JobContext* context, SessionPlan plan, TrainingStart start,
             const std::vector<Member>& routers);

  // Loads, from `checkpoint` (null: the job's seed), and trains until the last
  // checkpoint is written. Errors: those of JobContext::Await(); what has ended
  // the attempt.
  absl::Status Run(std::unique_ptr<CheckpointReader> checkpoint);
  Exit exit() const { return exit_; }

  // The last step that counts as made.
  int64_t committed() const { return committed_; }
  // Members had loaded, and steps began.
  bool trained() const { return trained_; }
  size_t num_workers() const { return plan_.workers.size(); }
  // That own dense parameters.
  size_t num_owners() const { return holders_.size() - num_workers(); }

  // Tells members to drop the session, at once or, with `in_order`, after its
  // queued commands, and abandons an unfinished checkpoint.
  std::shared_ptr<const MemberReplies> Release(bool in_order = false);

 private:
  // Loading.
  absl::Status Load(const CheckpointReader* checkpoint);
  absl::Status LoadDense(const CheckpointReader* checkpoint);
  void Publish() const;

  // Waiting: as JobContext::Await(), and looks after members and the checkpoint
  // meanwhile.
  absl::Status Await(const std::function<bool()>& done,
                     MonotonicTime until = MonotonicTime::InfiniteFuture());
  // Until all have replied.
  absl::StatusOr<std::vector<v1::CommandReply>> AwaitAll(
      std::shared_ptr<const MemberReplies> replies);
  absl::Status CheckMembers();
  absl::Status PollRouters();
  absl::Status PollCheckpoint();
  absl::Status Leave(Exit exit, const absl::Status& why);
  // Of a member: ends the attempt, or fails the job.
  absl::Status OnMemberFailed(const absl::Status& status);

  // Steps: job_step.cc.
  absl::Status MakeStep();
  absl::Status RunPhases();
  // Microbatches that have been run.
  struct Ran {
    StepStatistics sums;
    std::vector<int32_t> attempts;  // that count, by microbatch
    std::vector<int32_t> by;        // ranks of owners; -1: none
  };
  // Has microbatches run, of the step or of the held-out text.
  absl::StatusOr<Ran> RunMicrobatches(int32_t count, int32_t window,
                                      bool validation);
  std::shared_ptr<const MemberReplies> Assign(const Assignment& assignment,
                                              bool validation);
  // What the router says of a microbatch that it has run.
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
  // What the step is to be multiplied by; null: it is left out.
  absl::StatusOr<std::optional<StepScale>> Scale(std::vector<SquaredNorm> norms,
                                                 const StepStatistics& sums);
  absl::Status Commit(const std::optional<StepScale>& scale);
  // What the step did since the last call is over.
  void EndPhase(const char* phase);

  // What follows steps: job_training.cc.
  absl::Status Train();
  // Tells of the step that is committed. Returns whether the job ends with it.
  bool CountStep(bool skipped);
  bool CheckpointDue() const;
  // Whether the held-out text is measured; `over`: it is the last step.
  bool ValidationDue(bool over) const;
  absl::Status Validate();
  // Until no checkpoint is being written.
  absl::Status AwaitCheckpoint();
  // Begins to write `step`, without the workers `lost`.
  void BeginCheckpoint(int64_t step, std::optional<double> validation_loss,
                       const std::set<size_t>& lost = {});
  void DropCheckpoint();
  void OnCheckpointWritten();
  // The last step's checkpoint is all that was missing.
  bool IsDone() const;
  // The last step is in a checkpoint, so that the attempt may end without loss:
  // an error if it does.
  absl::Status AtCheckpoint();
  // A worker that holds experts and wants to leave; empty if none does.
  std::string LeavingHolder() const;
  // Which members have joined that would take part, or want to leave; empty if
  // none.
  std::string MembersHaveChanged() const;

  // Losses: job_rescue.cc. Workers, by their place in the plan, that are no
  // members.
  std::set<size_t> LostWorkers() const;
  // The attempt was lost by `cause`. With buddies: has the workers that are
  // left write a checkpoint of the last step committed, unless there is one or
  // they cannot. Returns OK if the job is done with it, else mostly `cause`.
  absl::Status Rescue(const absl::Status& cause);
  // Without the workers `lost`. OK if it is written.
  absl::Status WriteRescue(std::set<size_t> lost, const absl::Status& cause);

  JobContext* const context_;
  SessionPlan plan_;
  const TrainingStart start_;
  const Schedule schedule_;
  std::unique_ptr<DenseReduction> reduction_;  // or dense_
  std::shared_ptr<DenseParameters> dense_;
  std::vector<ShardHolder> holders_;     // workers, then routers
  std::unique_ptr<JobRouters> routers_;  // once workers have loaded
  std::unique_ptr<CheckpointWrite> writing_;
  Exit exit_ = Exit::kFailed;
  bool trained_ = false;

  // Of the step being made, or the last one.
  int64_t committed_;
  int64_t step_;
  TraceContext step_trace_;  // of the last MakeStep()
  StepResult result_;
  MonotonicTime phase_began_;
  v1::CommitStep commit_;  // the last that was begun, if any
  bool counted_ = true;    // it has been told of
  bool last_step_ = false;
  bool validating_ = false;
  std::optional<double> validation_loss_;  // with its parameters
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_JOB_ATTEMPT_H_
