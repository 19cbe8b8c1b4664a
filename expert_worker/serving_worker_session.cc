#include "expert_worker/serving_worker_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<std::unique_ptr<WorkerSession>> ServingWorkerSession::Create(
    WorkerSessionSpec spec, MemoryShare memory, Device* device) {
  std::unique_ptr<CheckpointReader> checkpoint;
  if (!spec.source.checkpoint_directory.empty()) {
    ASSIGN_OR_RETURN(checkpoint,
                     CheckpointReader::Open(spec.source.checkpoint_directory));
  }
  std::unique_ptr<ServingWorkerSession> session(new ServingWorkerSession(
      std::move(spec.segments), std::move(memory), device));
  RETURN_IF_ERROR(session->host_.status());
  ASSIGN_OR_RETURN(
      session->parameters_,
      ReadParameters(spec.parameters, spec.experts, checkpoint.get(),
                     spec.source.initial_seed, session->host_.weight_forms(),
                     device, spec.source.stop));
  RETURN_IF_ERROR(session->host_.WarmUp(
      static_cast<int64_t>(spec.experts.size()), session->parameters_));
  return session;
}

absl::StatusOr<std::vector<Tensor>> ServingWorkerSession::RunSegment(
    const SegmentRun& run, TensorMap inputs) {
  if (run.step != 0 || run.microbatch != 0 || run.attempt != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the session does not train, got step ", run.step));
  }
  ASSIGN_OR_RETURN(
      SegmentResult result,
      host_.Run(run.segment, /*run=*/"", std::move(inputs), parameters_));
  return std::move(result.replies);
}

}  // namespace gshard
