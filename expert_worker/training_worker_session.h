// TrainingWorkerSession: experts that a job trains: their ParameterShard,
// another one for experts replicated here for another worker, and the saved
// values of the open step's runs. With a device all of this is on the device
// and computed there; rows are copied in and out, snapshots and sums for the
// buddy out.
//
// A training step: RunSegment of every microbatch, PrepareStep, CommitStep. All
// state of a step is keyed by its number and released when the step is
// committed.
//
// Memory: parameters, their optimizer state and gradient sums are reserved when
// the session is created; the copy that an update makes of them while a
// checkpoint is written, when that begins. A microbatch's memory is reserved as
// needed: rows and gradients while it runs, gradients while it is early, i.e.
// waits for earlier ones in the sum. If memory runs out, an earlier microbatch
// preempts running ones, the latest first (ABORTED), which are rerun. So the
// earliest can get the memory of all running ones, but not of early ones. Of
// these there are fewer than the window, which the coordinator chooses so that
// they and one more fit; a session is not created if their gradients do not. So
// a step makes progress unless models that were loaded later take that memory:
// then the earliest fails, which ends the attempt, and the next one gets a
// window for what is left.

#ifndef EXPERT_WORKER_TRAINING_WORKER_SESSION_H_
#define EXPERT_WORKER_TRAINING_WORKER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "expert_worker/worker_session.h"
#include "services/base/mutex.h"
#include "services/checkpoint/write_shard.h"
#include "services/train/parameter_shard.h"

namespace gshard {

// Thread-safe: calls of different microbatches run concurrently; the commands
// of a step wait for them.
class TrainingWorkerSession final : public WorkerSession {
 public:
  // REQUIRES: CheckWorkerSession. Errors: ResourceExhausted if the gradients of
  // a window's microbatches do not fit into `account`; those of OpenToTrain,
  // ParameterStore::Load, SegmentHost::status and the device.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Create(
      WorkerSessionSpec spec, MemoryAccount account, MemoryShare memory,
      Device* device);

  // Additional errors: those of ParameterShard::Begin and Add; Aborted if an
  // earlier microbatch preempted this one; ResourceExhausted if there is no
  // memory for its saved values; the reason why the device has no parameters.
  // An error ends the attempt. A call of an evaluation segment keeps no state.
  absl::StatusOr<std::vector<Tensor>> RunSegment(const SegmentRun& run,
                                                 TensorMap inputs) override;
  void EndRuns(uint64_t owner) override;
  TrainingWorkerSession* training() override { return this; }

  // As ParameterShard::Prepare; later calls of the step are refused.
  absl::StatusOr<std::vector<SquaredNorm>> PrepareStep(
      int64_t step, absl::Span<const int32_t> attempts);

  // The sums of the prepared step that the replica of these experts needs.
  // Errors: those of ParameterShard::PreparedSums.
  absl::StatusOr<GradientList> PreparedGradients(int64_t step) const {
    return own_->PreparedSums(step);
  }

  // Shapes of the parameters replicated here; empty without a replica.
  std::vector<NamedShape> ReplicaShapes() const;

  // Accepts the owner's sums of a step; does nothing for a committed step.
  // Errors: FailedPrecondition without a replica; those of
  // ParameterShard::PrepareSums.
  absl::Status ReplicateGradients(int64_t step, GradientList sums);

  // As ParameterShard::Commit, for the replica, too: both or neither.
  absl::Status CommitStep(int64_t step, double gradient_scale,
                          double learning_rate, bool skip);

  // A snapshot of the parameters, to be written as a shard of a checkpoint. The
  // session outlives it.
  class Shard {
   public:
    // Callable on any thread while the session continues. As WriteShard.
    absl::StatusOr<std::vector<TensorEntry>> Write(
        const std::function<bool()>& abandoned = nullptr,
        FaultPoints* faults = nullptr) const;

    // Whether there is memory for the copy that an update makes meanwhile,
    // which this has then reserved. If not, write it before the next commit.
    bool outlasts_updates() const { return outlasts_updates_; }

   private:
    friend class TrainingWorkerSession;
    Shard(const TrainingWorkerSession* session, ShardTarget target,
          uint64_t number)
        : memory_(session->account_),
          session_(session),
          target_(std::move(target)),
          number_(number) {}
    // Errors: those of ParameterShard::TakeSnapshot.
    absl::Status Add(const ParameterShard& parameters);
    void ReserveCopy();

    MemoryShare memory_;  // first, so that it is released last
    bool outlasts_updates_ = false;
    const TrainingWorkerSession* const session_;
    const ShardTarget target_;
    const uint64_t number_;
    // Outlive tensors_, so that these are released as the shards require.
    std::vector<ParameterShard::Snapshot> snapshots_;
    std::vector<NamedTensor> tensors_;
  };

  // Takes a snapshot of the parameters, with `include_replica` also of the
  // replica's. Since a snapshot may grow to the size of parameters and
  // optimizer state, only the latest is kept: writing an earlier one is
  // abandoned. With a device it is a copy on the host, made before this
  // returns. Errors: FailedPrecondition if target.step is not the last
  // committed one, or there is no replica; those of
  // ParameterShard::TakeSnapshot.
  absl::StatusOr<std::unique_ptr<Shard>> BeginCheckpoint(
      ShardTarget target, bool include_replica = false) const;

  int64_t step() const { return own_->step(); }
  // Number of runs with saved values that have not ended.
  size_t open_runs() const { return host_.open_runs(); }
  // Copies that share memory, on the device if there is one; valid until the
  // next commit.
  TensorMap Parameters() const { return own_->tensors(); }

 private:
  // A microbatch's run; at most one exists, of the highest attempt.
  struct OpenRun {
    std::string name;  // in the host
    uint64_t owner = 0;
    int32_t attempt = 0;
    MemoryShare memory;
    int64_t gradient_bytes = 0;  // bytes of `gradients`
    GradientList gradients;      // from the segments run so far
  };
  using OpenRuns = std::map<int32_t, OpenRun>;  // by microbatch

  TrainingWorkerSession(WorkerSessionSpec spec, MemoryAccount account,
                        MemoryShare memory, std::unique_ptr<ParameterShard> own,
                        std::unique_ptr<ParameterShard> replica,
                        Device* device);

  // own_'s tensors in the form of parameters_.
  absl::StatusOr<TensorMap> RoundedParameters() const;
  // Records the run and its call.
  absl::Status EnterRun(const SegmentRun& run, const std::string& name);
  // Keeps the results of a call; when the run's last call completes, adds them
  // to the sum.
  absl::Status KeepResult(const SegmentRun& run, const std::string& name,
                          absl::StatusOr<SegmentResult>& result);
  void DropRun(const SegmentRun& run, const std::string& name);
  absl::Status TakeMemory(int32_t microbatch, int64_t bytes, OpenRun* run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(runs_mutex_);
  // Also records its attempt in given_up_.
  void GiveUp(OpenRuns::iterator run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(runs_mutex_);

  MemoryAccount account_;
  Device* const device_;  // may be null
  SegmentHost host_;
  SegmentHost evaluation_host_;     // no segments without validation
  const WeightForms weight_forms_;  // that host_ takes

  // Shared by runs, exclusive for steps.
  mutable SharedMutex step_mutex_;
  const std::unique_ptr<ParameterShard> own_;
  const std::unique_ptr<ParameterShard> replica_;  // may be null
  // own_'s tensors, rounded as the segments take them; or why there are none.
  absl::StatusOr<TensorMap> parameters_ ABSL_GUARDED_BY(step_mutex_);

  mutable std::atomic<uint64_t> last_shard_ = 0;

  Mutex runs_mutex_;
  OpenRuns runs_ ABSL_GUARDED_BY(runs_mutex_);
  // Abandoned attempts, by microbatch.
  std::map<int32_t, int32_t> given_up_ ABSL_GUARDED_BY(runs_mutex_);
  // By microbatch: memory of early ones.
  std::map<int32_t, MemoryShare> early_ ABSL_GUARDED_BY(runs_mutex_);
};

// Errors: FailedPrecondition if it serves.
absl::StatusOr<TrainingWorkerSession*> AsTraining(WorkerSession& session);

}  // namespace gshard

#endif  // EXPERT_WORKER_TRAINING_WORKER_SESSION_H_
