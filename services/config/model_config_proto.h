// ModelConfig to and from the message that travels.

#ifndef SERVICES_CONFIG_MODEL_CONFIG_PROTO_H_
#define SERVICES_CONFIG_MODEL_CONFIG_PROTO_H_

#include "absl/status/statusor.h"
#include "proto/gshard/v1/model_config.pb.h"
#include "services/config/model_config.h"

namespace gshard {

// Defaults for absent fields, then validation. Errors: as ValidateModelConfig.
absl::StatusOr<ModelConfig> ModelConfigFromProto(
    const v1::ModelConfig& message);

// Sets every field.
v1::ModelConfig ModelConfigToProto(const ModelConfig& config);

}  // namespace gshard

#endif  // SERVICES_CONFIG_MODEL_CONFIG_PROTO_H_
