// Converts ModelConfig to and from its message.

#ifndef SERVICES_CONFIG_MODEL_CONFIG_PROTO_H_
#define SERVICES_CONFIG_MODEL_CONFIG_PROTO_H_

#include <optional>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/model_config.pb.h"
#include "services/config/model_config.h"

namespace gshard {

// Applies defaults, then validates. Errors: as ValidateModelConfig.
absl::StatusOr<ModelConfig> ModelConfigFromProto(
    const v1::ModelConfig& message);

// Sets every field.
v1::ModelConfig ModelConfigToProto(const ModelConfig& config);

// Converts an optional field. Errors: InvalidArgument for an unknown number.
absl::StatusOr<std::optional<ComputeType>> ComputeTypeFromProto(int64_t number);
v1::ModelConfig::ComputeType ComputeTypeToProto(
    const std::optional<ComputeType>& type);

}  // namespace gshard

#endif  // SERVICES_CONFIG_MODEL_CONFIG_PROTO_H_
