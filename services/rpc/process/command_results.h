// Results of a step's commands as messages, common to routers and expert
// workers.

#ifndef SERVICES_RPC_PROCESS_COMMAND_RESULTS_H_
#define SERVICES_RPC_PROCESS_COMMAND_RESULTS_H_

#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/checkpoint/checkpoint.h"
#include "services/train/parameter_store.h"

namespace gshard {

v1::StepPrepared StepPreparedToProto(const std::vector<SquaredNorm>& norms);

// All tensors of sessions are float32.
v1::CheckpointWritten CheckpointWrittenToProto(
    const std::vector<TensorEntry>& entries);

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_COMMAND_RESULTS_H_
