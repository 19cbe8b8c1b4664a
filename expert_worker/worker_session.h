// WorkerSession: an expert worker's state of one session: segments and the
// parameters of some experts. Implemented by ServingWorkerSession for served
// models and TrainingWorkerSession for jobs.

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

// Identifies a call. In serving and evaluation all but `segment` and `owner`
// are 0.
struct SegmentRun {
  std::string segment;
  int64_t step = 0;
  int32_t microbatch = 0;
  int32_t attempt = 0;
  // The caller; see EndRuns.
  uint64_t owner = 0;
};

// Maximum number of segments in a session.
inline constexpr size_t kMaxSegments = 16384;

// Checks that the fields of `spec` are consistent. Returns the bytes of the
// session's parameters in the types of its segments and, in training, of
// optimizer state and sums. Errors: InvalidArgument naming the inconsistency.
absl::StatusOr<int64_t> CheckWorkerSession(const WorkerSessionSpec& spec);

class TrainingWorkerSession;

// Thread-safe.
class WorkerSession {
 public:
  // Creates the parameters, with memory from `account`, and runs segments on
  // `device`, which outlives the session, or on the CPU if null. Errors: those
  // of CheckWorkerSession; ResourceExhausted; those of
  // ServingWorkerSession::Create or TrainingWorkerSession::Create.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Create(
      WorkerSessionSpec spec, MemoryAccount account, Device* device = nullptr);
  virtual ~WorkerSession() = default;

  // Runs a segment; returns its replies in order. `inputs` have the segment's
  // names. Errors: those of SegmentHost::Run; FailedPrecondition for a call
  // with a step, if the session does not train.
  virtual absl::StatusOr<std::vector<Tensor>> RunSegment(const SegmentRun& run,
                                                         TensorMap inputs) = 0;

  // Drops the saved values of `owner`'s unfinished runs.
  virtual void EndRuns(uint64_t owner) = 0;

  // Null for a serving session.
  virtual TrainingWorkerSession* training() { return nullptr; }

  // Records how long a call of that many rows took. Calls are brief if lately
  // ones of as many rows took no longer than it takes to wake a thread.
  void CountRun(int64_t rows, std::chrono::microseconds took) {
    if (took <= kBrief) {
      if (rows > brief_rows_) brief_rows_ = rows;
    } else if (rows <= brief_rows_) {
      brief_rows_ = rows - 1;
    }
  }
  bool IsBrief(int64_t rows) const { return rows <= brief_rows_; }

  // Bytes reserved at construction.
  int64_t memory_bytes() const { return memory_.bytes(); }

 protected:
  explicit WorkerSession(MemoryShare memory) : memory_(std::move(memory)) {}

 private:
  static constexpr std::chrono::microseconds kBrief{50};

  const MemoryShare memory_;  // first, so that it is released last
  std::atomic<int64_t> brief_rows_ = -1;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_WORKER_SESSION_H_
