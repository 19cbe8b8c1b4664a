#include "services/config/model_config.h"

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/config/model_config_fields.h"
#include "services/config/model_config_proto.h"
#include "services/config/text_proto.h"

namespace gshard {

absl::Status ValidateModelConfig(const ModelConfig& config) {
  FieldChecker checker;
  VisitFields(checker, config);
  RETURN_IF_ERROR(checker.status());

  if (config.experts == 1) {
    return absl::InvalidArgumentError(
        "experts: expected 0 (dense) or 2 to 2048, as each token has two "
        "choices, got 1");
  }
  if (config.moe_offset >= config.moe_period) {
    return absl::InvalidArgumentError(
        absl::StrCat("moe_offset: expected less than moe_period, which is ",
                     config.moe_period, ", got ", config.moe_offset));
  }
  if (config.experts > 0 && config.NumMoeLayers(config.encoder_layers) == 0 &&
      config.NumMoeLayers(config.decoder_layers) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "experts: expected 0, as moe_offset ", config.moe_offset,
        " leaves no MoE layer in ", config.encoder_layers, " encoder and ",
        config.decoder_layers, " decoder layers, got ", config.experts));
  }
  if (config.shared_vocabulary &&
      config.source_vocabulary_size != config.target_vocabulary_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "target_vocabulary_size: expected source_vocabulary_size, which is ",
        config.source_vocabulary_size, ", as shared_vocabulary is set, got ",
        config.target_vocabulary_size));
  }
  if (config.wire_type == ComputeType::kInt8) {
    return absl::InvalidArgumentError(
        "wire_type: expected FLOAT32 or BFLOAT16, got INT8");
  }
  if (config.positions == Positions::kSinusoidal &&
      config.model_width % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_width: expected an even number, as positions is "
                     "SINUSOIDAL, got ",
                     config.model_width));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ModelConfigFromProto(
    const v1::ModelConfig& message) {
  ModelConfig config;
  FieldReader reader(message);
  VisitFields(reader, config);
  RETURN_IF_ERROR(ValidateModelConfig(config));
  return config;
}

absl::StatusOr<std::optional<ComputeType>> ComputeTypeFromProto(
    int64_t number) {
  if (number == v1::ModelConfig::COMPUTE_TYPE_UNSPECIFIED) return std::nullopt;
  if (number > 0 && number < v1::ModelConfig::ComputeType_ARRAYSIZE) {
    return static_cast<ComputeType>(number - 1);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a ComputeType of this release, got number ", number));
}

v1::ModelConfig::ComputeType ComputeTypeToProto(
    const std::optional<ComputeType>& type) {
  return type.has_value() ? static_cast<v1::ModelConfig::ComputeType>(
                                static_cast<int>(*type) + 1)
                          : v1::ModelConfig::COMPUTE_TYPE_UNSPECIFIED;
}

absl::string_view ComputeTypeName(ComputeType type) {
  switch (type) {
    case ComputeType::kFloat32:
      return "float32";
    case ComputeType::kBFloat16:
      return "bfloat16";
    case ComputeType::kInt8:
      return "int8";
  }
  CHECK(false);
}

absl::StatusOr<ComputeType> ParseComputeType(absl::string_view name) {
  for (const ComputeType type :
       {ComputeType::kFloat32, ComputeType::kBFloat16, ComputeType::kInt8}) {
    if (ComputeTypeName(type) == name) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected float32, bfloat16 or int8, got '", name, "'"));
}

v1::ModelConfig ModelConfigToProto(const ModelConfig& config) {
  v1::ModelConfig message;
  FieldWriter writer(&message);
  VisitFields(writer, config);
  return message;
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text) {
  v1::ModelConfig message;
  RETURN_IF_ERROR(ParseTextProto(text, &message));
  return ModelConfigFromProto(message);
}

std::string ModelConfigToText(const ModelConfig& config) {
  return PrintTextProto(ModelConfigToProto(config));
}

absl::StatusOr<ModelConfig> LoadModelConfig(absl::string_view path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) return Annotate(config.status(), path);
  return config;
}

}  // namespace gshard
