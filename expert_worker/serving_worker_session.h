// ServingWorkerSession: experts of a served model. Its parameters are held
// once, on the device and in the types that the segments take: 2 bytes per
// weight in bfloat16.

#ifndef EXPERT_WORKER_SERVING_WORKER_SESSION_H_
#define EXPERT_WORKER_SERVING_WORKER_SESSION_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "expert_worker/worker_session.h"

namespace gshard {

// Calls are stateless and may run concurrently.
class ServingWorkerSession final : public WorkerSession {
 public:
  // Reads the parameters, and warms up. REQUIRES: CheckWorkerSession. Errors:
  // those of CheckpointReader::Open, SegmentHost::status, ReadParameters and
  // SegmentHost::WarmUp.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Create(
      WorkerSessionSpec spec, MemoryShare memory, Device* device);

  absl::StatusOr<std::vector<Tensor>> RunSegment(const SegmentRun& run,
                                                 TensorMap inputs) override;
  void EndRuns(uint64_t) override {}

 private:
  ServingWorkerSession(std::vector<Segment> segments, MemoryShare memory,
                       Device* device)
      : WorkerSession(std::move(memory)), host_(std::move(segments), device) {}

  SegmentHost host_;
  TensorMap parameters_;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_SERVING_WORKER_SESSION_H_
