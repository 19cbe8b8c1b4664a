// WorkerSession: what an expert worker holds of one session: the segments, some
// experts' parameters, and in training their optimizer state and the step's
// gradients.
//
// A training step: RunSegment of every microbatch, PrepareStep, CommitStep.
// Everything that a step leaves behind is kept under its number and goes when
// the step is committed.
//
// Memory: parameters, their optimizer state and the sum of gradients are taken
// from the account when the session is made. What a microbatch keeps is taken
// as it comes: rows and gradients while it is run, gradients while it is early,
// i.e. waits for those before it in the sum. If there is not enough,
// microbatches that are run make way for earlier ones, the latest first
// (ABORTED), and are run again. So the earliest gets all that those that are
// run have. Of early ones there are fewer than the window has, which the
// coordinator chooses so that there is memory for them and one more: a step
// always goes on.

#ifndef EXPERT_WORKER_WORKER_SESSION_H_
#define EXPERT_WORKER_WORKER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "expert_worker/replica.h"
#include "expert_worker/step_gradients.h"
#include "services/base/memory_account.h"
#include "services/checkpoint/write_shard.h"
#include "services/config/model_config.h"
#include "services/model/parameters.h"
#include "services/segments/segment_host.h"
#include "services/train/optimizer.h"
#include "services/train/parameter_store.h"

namespace gshard {

// What a session is made of. Nothing in it is trusted.
struct WorkerSessionSpec {
  std::vector<Segment> segments;
  std::vector<ParameterSpec> parameters;  // dims over all workers: [E, ...]
  std::vector<int32_t> experts;           // held here, ascending
  int32_t total_experts = 0;

  // Where parameters come from: a checkpoint, or if empty the seed.
  std::string checkpoint_directory;
  uint64_t initial_seed = 0;

  // The rest is for training; null in serving.
  std::shared_ptr<const Optimizer> optimizer;
  int64_t step = 0;           // committed already
  int64_t skipped_steps = 0;  // of these, the last, left out by the source
  int64_t microbatches_per_step = 0;
  int64_t microbatch_window = 0;  // as in proto/gshard/v1/session.proto
  std::vector<Segment> evaluation_segments;  // reply only

  // With buddies: experts of another worker that are replicated here, and where
  // the replica of this one's is kept; either may be empty.
  std::vector<int32_t> replicated_experts;
  std::string buddy_address;
};

// Which call this is. In serving and evaluation all but `segment` and `owner`
// are 0.
struct SegmentRun {
  std::string segment;
  int64_t step = 0;
  int32_t microbatch = 0;
  int32_t attempt = 0;
  // Who calls; see EndRuns.
  uint64_t owner = 0;
};

// Most segments of a session.
inline constexpr size_t kMaxSegments = 16384;

// Bytes of the session's parameters, optimizer state and sums, and OK, if the
// parts of `spec` fit together. Errors: InvalidArgument saying which do not.
absl::StatusOr<int64_t> CheckWorkerSession(const WorkerSessionSpec& spec);

// Thread-safe: calls of different microbatches run at the same time; the
// methods that read or change parameters as a whole wait for them.
class WorkerSession {
 public:
  // Makes the parameters, with memory of `account`; a session that serves is
  // warmed up. Errors: those of
  // CheckWorkerSession; ResourceExhausted; those of CheckpointReader::Open and
  // ParameterStore::Load and SegmentHost::WarmUp; FailedPrecondition if the
  // checkpoint is of another step.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Create(
      WorkerSessionSpec spec, MemoryAccount account);

  // Runs a segment; returns its replies in order. `inputs` are named as the
  // segment's. Errors: those of SegmentHost::Run; InvalidArgument for a
  // microbatch that there is not; FailedPrecondition if the session is at
  // another step or has seen a higher attempt; Aborted if the microbatch has
  // made way for an earlier one; ResourceExhausted if there is no memory for
  // what it keeps. In training an error ends the attempt. A call of an
  // evaluation segment leaves nothing behind.
  absl::StatusOr<std::vector<Tensor>> RunSegment(const SegmentRun& run,
                                                 TensorMap inputs);

  // Drops what the unfinished runs of `owner` have saved.
  void EndRuns(uint64_t owner);

  // Ends the summation of `step`; no call of it is taken from then on.
  // Repeating it gives the same. Errors: FailedPrecondition if `step` is not
  // the one after the last or a microbatch has no gradient of the attempt that
  // counts; InvalidArgument if the attempts are not one for each microbatch, or
  // the segments' gradients do not have the parameters' shapes.
  absl::StatusOr<std::vector<SquaredNorm>> PrepareStep(
      int64_t step, absl::Span<const int32_t> attempts);

  // What the replica of these experts needs of the step that is prepared.
  // Errors: FailedPrecondition if that is another, or none.
  absl::StatusOr<GradientList> PreparedGradients(int64_t step) const;

  // Per-expert parameters as they are replicated here; empty for no replica.
  std::vector<ParameterSpec> ReplicaParameters() const;

  // Takes their owner's sums of a step; of one that is committed it does
  // nothing. Errors: FailedPrecondition without a replica, or if `step` is not
  // the one after the last; those of Replica::Take.
  absl::Status ReplicateGradients(int64_t step, GradientList sums);

  // Makes update `step`, or with `skip` only counts it; the same for the
  // replica. Repeating it does nothing. Errors: FailedPrecondition unless
  // `step` is prepared, here and for the replica, or was the last one
  // committed; InvalidArgument if a number is not finite.
  absl::Status CommitStep(int64_t step, double gradient_scale,
                          double learning_rate, bool skip);

  // A shard of a checkpoint that is still to be written: the parameters as they
  // were. The session outlives it.
  class Shard {
   public:
    ~Shard();
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    // On any thread, while the session goes on. As WriteShard.
    absl::StatusOr<std::vector<TensorEntry>> Write(
        const std::function<bool()>& abandoned = nullptr,
        FaultPoints* faults = nullptr) const;

   private:
    friend class WorkerSession;
    Shard(const WorkerSession* session, ShardTarget target, uint64_t number)
        : session_(session), target_(std::move(target)), number_(number) {}

    const WorkerSession* const session_;
    const ShardTarget target_;
    const uint64_t number_;
    std::vector<NamedTensor> tensors_;
  };

  // Takes what is to be written of the parameters now, with `include_replica`
  // also of the replica's. As a shard may come to take as much memory as
  // parameters and optimizer state do, only the last one is wanted: the writing
  // of an earlier one ends. Errors: FailedPrecondition if target.step is not
  // the last one committed, or there is no replica.
  absl::StatusOr<std::unique_ptr<Shard>> BeginCheckpoint(
      ShardTarget target, bool include_replica = false) const;

  bool training() const { return optimizer_ != nullptr; }
  // That were taken when it was made.
  int64_t memory_bytes() const { return memory_.bytes(); }
  int64_t step() const;
  // Runs that have saved something and not ended.
  size_t open_runs() const { return host_.open_runs(); }
  // Copies that share memory, valid until the next commit.
  TensorMap Parameters() const;

 private:
  struct OpenRun {
    uint64_t owner;
    int32_t microbatch;
    int32_t attempt;
    MemoryShare memory;
    int64_t gradient_bytes = 0;  // of them
  };
  struct Prepared {
    std::vector<int32_t> attempts;
    GradientList gradients;
    std::vector<SquaredNorm> norms;
  };

  WorkerSession(WorkerSessionSpec spec, MemoryAccount account,
                MemoryShare memory);

  absl::StatusOr<std::vector<Tensor>> RunTraining(const SegmentRun& run,
                                                  TensorMap inputs);
  absl::Status CheckTraining() const;
  void BeginStep();
  void TakeParameters();
  // Notes the run, and that it makes a call.
  absl::Status EnterRun(const SegmentRun& run, const std::string& name);
  // Takes memory for what a call of the run has left here.
  absl::Status Hold(const SegmentRun& run, const std::string& name,
                    int64_t saved_bytes, int64_t gradient_bytes);
  void EndRun(const std::string& name);
  // The same for one that is complete: what is early stays on the account.
  void CompleteRun(const std::string& name);
  // Takes a run, given up unless it is complete, from runs_. Its saved rows are
  // the host's to end. Needs runs_mutex_.
  void LetGo(std::map<std::string, OpenRun>::iterator run);
  // Gives back what was early and is in the sum. Needs runs_mutex_.
  void DropSummed();

  MemoryAccount account_;
  const MemoryShare memory_;  // before what it is for, and so after it
  const std::shared_ptr<const Optimizer> optimizer_;
  const int64_t microbatches_;
  const int64_t window_;
  SegmentHost host_;
  SegmentHost evaluation_host_;  // without segments unless there is validation

  // Shared by runs, exclusive for steps.
  mutable std::shared_mutex step_mutex_;
  int64_t step_;  // committed
  ParameterStore store_;
  TensorMap parameters_;  // the store's, rounded as the segments take them
  const std::unique_ptr<Replica> replica_;    // may be null
  std::unique_ptr<StepGradients> gradients_;  // of step_ + 1
  std::optional<Prepared> prepared_;          // of step_ + 1
  absl::Status refused_;  // why the sums of step_ + 1 are no gradients

  // Held while parameters are updated and while a snapshot is let go.
  mutable std::mutex snapshot_mutex_;
  mutable std::atomic<uint64_t> last_shard_ = 0;

  std::mutex runs_mutex_;
  std::map<std::string, OpenRun> runs_;   // guarded by runs_mutex_
  std::map<int32_t, MemoryShare> early_;  // guarded by runs_mutex_
};

}  // namespace gshard

#endif  // EXPERT_WORKER_WORKER_SESSION_H_
