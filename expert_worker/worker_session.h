// WorkerSession: an expert worker's state of one session: segments and the
// parameters of some experts. ServingWorkerSession is of a served model,
// TrainingWorkerSession of a job.

#ifndef EXPERT_WORKER_WORKER_SESSION_H_
#define EXPERT_WORKER_WORKER_SESSION_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/base/memory_account.h"
#include "services/config/model_config.h"
#include "services/graph/device.h"
#include "services/model/parameters.h"
#include "services/segments/segment_host.h"
#include "services/train/optimizer.h"
#include "services/train/parameter_source.h"

namespace gshard {

// The definition of a session. Untrusted.
struct WorkerSessionSpec {
  std::vector<Segment> segments;
  std::vector<ParameterSpec> parameters;  // dims over all workers: [E, ...]
  std::vector<int32_t> experts;           // held here, ascending
  int32_t total_experts = 0;
  ParameterSource source;

  // The rest is for training; null in serving.
  std::shared_ptr<const Optimizer> optimizer;
  int64_t microbatches_per_step = 0;
  int64_t microbatch_window = 0;  // as in proto/gshard/v1/session.proto
  std::vector<Segment> evaluation_segments;  // reply only

  // With buddies: the experts of another worker replicated here, and the
  // address of this worker's replica; either may be empty.
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

// Checks that the fields of `spec` are consistent. Returns the bytes of the
// session's parameters in the types of its segments and, in training, of
// optimizer state and sums. Errors: InvalidArgument naming the inconsistency.
absl::StatusOr<int64_t> CheckWorkerSession(const WorkerSessionSpec& spec);

class TrainingWorkerSession;

// Thread-safe.
class WorkerSession {
 public:
  // Makes the parameters, with memory of `account`, and runs segments on
  // `device`, which outlives the session, or where that is null on the CPU.
  // Errors: those of CheckWorkerSession; ResourceExhausted; those of
  // ServingWorkerSession::Create or TrainingWorkerSession::Create.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Create(
      WorkerSessionSpec spec, MemoryAccount account, Device* device = nullptr);
  virtual ~WorkerSession() = default;

  // Runs a segment; returns its replies in order. `inputs` are named as the
  // segment's. Errors: those of SegmentHost::Run; FailedPrecondition for the
  // call of a step, if the session does not train.
  virtual absl::StatusOr<std::vector<Tensor>> RunSegment(const SegmentRun& run,
                                                         TensorMap inputs) = 0;

  // Drops the saved values of `owner`'s unfinished runs.
  virtual void EndRuns(uint64_t owner) = 0;

  // Null for a session that serves.
  virtual TrainingWorkerSession* training() { return nullptr; }

  // What calls of so many rows took, and whether they are brief: lately took
  // no longer than to wake a thread and what goes with that.
  void CountRun(int64_t rows, std::chrono::microseconds took) {
    if (took <= kBrief) {
      if (rows > brief_rows_) brief_rows_ = rows;
    } else if (rows <= brief_rows_) {
      brief_rows_ = rows - 1;
    }
  }
  bool IsBrief(int64_t rows) const { return rows <= brief_rows_; }

  // Taken at construction.
  int64_t memory_bytes() const { return memory_.bytes(); }

 protected:
  explicit WorkerSession(MemoryShare memory) : memory_(std::move(memory)) {}

 private:
  static constexpr std::chrono::microseconds kBrief{50};

  const MemoryShare memory_;  // before what it is for, and so after it
  std::atomic<int64_t> brief_rows_ = -1;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_WORKER_SESSION_H_
