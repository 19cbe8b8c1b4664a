// LoadSession and the results of commands, between messages and structs.

#ifndef EXPERT_WORKER_SESSION_PROTO_H_
#define EXPERT_WORKER_SESSION_PROTO_H_

#include <vector>

#include "absl/status/statusor.h"
#include "expert_worker/worker_session.h"
#include "proto/gshard/v1/coordinator.pb.h"

namespace gshard {

// Parses the segments and checks what WorkerSession::Create does not.
//
// Errors: InvalidArgument naming the field.
absl::StatusOr<WorkerSessionSpec> WorkerSessionFromProto(
    const v1::LoadSession& message);

v1::StepPrepared StepPreparedToProto(const std::vector<SquaredNorm>& norms);
v1::CheckpointWritten CheckpointWrittenToProto(
    const std::vector<TensorEntry>& entries);

}  // namespace gshard

#endif  // EXPERT_WORKER_SESSION_PROTO_H_
