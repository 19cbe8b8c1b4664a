#include "expert_worker/replica_upload.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "expert_worker/training_worker_session.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::Status ReplicaUpload::OnMessage(TensorFrame frame) {
  if (collector_ == nullptr) {
    session_ = frame.header.session();
    step_ = frame.header.step();
    ASSIGN_OR_RETURN(const SessionTable::Lease lease,
                     sessions_->Find(session_));
    ASSIGN_OR_RETURN(const TrainingWorkerSession* const session,
                     AsTraining(lease.session()));
    std::map<std::string, ExpectedTensor> expected;
    for (const NamedShape& shape : session->ReplicaShapes()) {
      expected[shape.name] = {ElementType::kFloat32, shape.dims};
    }
    if (expected.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("session '", session_, "' keeps no replica"));
    }
    collector_ = std::make_unique<TensorCollector>(std::move(expected));
  } else if (frame.header.session() != session_ ||
             frame.header.step() != step_) {
    return absl::InvalidArgumentError(
        "expected frames of one session and step");
  }
  return collector_->Add(std::move(frame));
}

absl::StatusOr<v1::ReplicateGradientsResponse> ReplicaUpload::Take() {
  if (collector_ == nullptr) {
    return absl::InvalidArgumentError("expected frames, got none");
  }
  ASSIGN_OR_RETURN(NamedTensors tensors, collector_->Take());
  GradientList sums;
  for (auto& [name, tensor] : tensors) {
    sums.emplace_back(name, std::move(tensor));
  }
  ASSIGN_OR_RETURN(const SessionTable::Lease lease, sessions_->Find(session_));
  if (lease.aborted()) {
    return absl::NotFoundError(absl::StrCat("no session '", session_, "'"));
  }
  ASSIGN_OR_RETURN(TrainingWorkerSession* const session,
                   AsTraining(lease.session()));
  RETURN_IF_ERROR(session->ReplicateGradients(step_, std::move(sums)));
  return v1::ReplicateGradientsResponse();
}

}  // namespace gshard
