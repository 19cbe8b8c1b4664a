// Converts a LoadSession message to a struct.

#ifndef EXPERT_WORKER_SESSION_PROTO_H_
#define EXPERT_WORKER_SESSION_PROTO_H_

#include "absl/status/statusor.h"
#include "expert_worker/worker_session.h"
#include "proto/gshard/v1/coordinator.pb.h"

namespace gshard {

// Parses the segments and checks what WorkerSession::Create does not.
//
// Errors: InvalidArgument naming the field.
absl::StatusOr<WorkerSessionSpec> WorkerSessionFromProto(
    const v1::LoadSession& message);

}  // namespace gshard

#endif  // EXPERT_WORKER_SESSION_PROTO_H_
