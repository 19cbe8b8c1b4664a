#include "services/rpc/process/command_results.h"

#include "services/base/log.h"
#include "services/rpc/process/member_client.h"

namespace gshard {

v1::CommandReply Outcome(const v1::Command& command, const absl::Status& status,
                         v1::CommandReply reply) {
  if (status.ok()) return reply;
  if (command.has_load_session() && absl::IsAlreadyExists(status)) {
    LogInfo("the session is loaded already", {{"session", SessionOf(command)}});
  } else {
    LogWarning("a command failed",
               {{"session", SessionOf(command)}, {"status", status}});
  }
  return ReplyWith(status);
}

v1::StepPrepared StepPreparedToProto(const std::vector<SquaredNorm>& norms) {
  v1::StepPrepared message;
  for (const SquaredNorm& norm : norms) {
    v1::GradientNorm& added = *message.add_norms();
    added.set_tensor(norm.tensor);
    added.set_squared_norm(norm.value);
  }
  return message;
}

v1::CheckpointWritten CheckpointWrittenToProto(
    const std::vector<TensorEntry>& entries) {
  v1::CheckpointWritten message;
  for (const TensorEntry& entry : entries) {
    v1::TensorEntry& added = *message.add_tensors();
    added.set_name(entry.name);
    added.set_file(entry.file);
    added.set_element_type(v1::ELEMENT_TYPE_FLOAT32);  // as in all sessions
    added.mutable_dims()->Add(entry.dims.begin(), entry.dims.end());
    added.set_sha256(entry.sha256);
  }
  return message;
}

}  // namespace gshard
