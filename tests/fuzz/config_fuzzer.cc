// Configurations of models and of training jobs, in text and wire format.

#include "services/config/model_config_proto.h"
#include "services/config/text_proto.h"
#include "services/config/training_job_proto.h"
#include "tests/fuzz/message_input.h"

namespace gshard {
namespace {

void UseModel(const v1::ModelConfig& message) {
  const auto config = ModelConfigFromProto(message);
  if (!Accepted(config.status())) return;
  const auto again =
      ParseModelConfig(PrintTextProto(ModelConfigToProto(*config)));
  CHECK(again.ok());
  CHECK(*again == *config);
}

void UseJob(const v1::TrainingJob& message) {
  const auto job = TrainingJobFromProto(message);
  if (!Accepted(job.status())) return;
  const auto again = ParseTrainingJob(PrintTextProto(TrainingJobToProto(*job)));
  CHECK(again.ok());
  CHECK(*again == *job);
}

void UseOptimizer(const v1::ExpertOptimizer& message) {
  (void)Accepted(OptimizerConfigFromProto(message).status());
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes = gshard::Bytes(data, size);
  gshard::ForEachMessage<gshard::v1::ModelConfig>(bytes, gshard::UseModel);
  gshard::ForEachMessage<gshard::v1::TrainingJob>(bytes, gshard::UseJob);
  gshard::ForEachMessage<gshard::v1::ExpertOptimizer>(bytes,
                                                      gshard::UseOptimizer);
  return 0;
}
