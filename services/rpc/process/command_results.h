// Results of commands as messages, common to routers and expert workers.

#ifndef SERVICES_RPC_PROCESS_COMMAND_RESULTS_H_
#define SERVICES_RPC_PROCESS_COMMAND_RESULTS_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/checkpoint/checkpoint.h"
#include "services/train/parameter_store.h"

namespace gshard {

// `reply` if the command succeeded. Otherwise logs that, and returns the reply
// that says so. ALREADY_EXISTS of a load is no failure: a coordinator finds so
// what members have kept from the one before.
v1::CommandReply Outcome(const v1::Command& command, const absl::Status& status,
                         v1::CommandReply reply);

v1::StepPrepared StepPreparedToProto(const std::vector<SquaredNorm>& norms);

// All tensors of sessions are float32.
v1::CheckpointWritten CheckpointWrittenToProto(
    const std::vector<TensorEntry>& entries);

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_COMMAND_RESULTS_H_
