// ModelConfig: the shape of a GShard Transformer, validated.
//
// proto/gshard/v1/model_config.proto is its form in files and on the wire;
// comments there say what each field means and give the ranges. This struct
// mirrors it without protobuf, and its initializers are the defaults.
//
// Letters: M model width, H expert hidden width, E experts, S tokens a group.

#ifndef SERVICES_CONFIG_MODEL_CONFIG_H_
#define SERVICES_CONFIG_MODEL_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

inline constexpr int64_t kMaxExperts = 2048;
inline constexpr int64_t kMaxLayers = 1000;  // per stack
inline constexpr int64_t kMaxWidth = 65536;

enum class Positions {
  kSinusoidal,  // fixed; no parameters
  kLearned,     // a [max_positions, M] table for each stack
};

enum class SecondExpertPolicy {
  kRandom,    // kept at random, by its weight
  kAll,       // always kept
  kSampling,  // sampled from the others by the gate's probabilities, kept
};

// Type of the operands of matrix products and, except kInt8, of rows between
// routers and expert workers. Results are always float32, and so is everything
// stored.
enum class ComputeType { kFloat32, kBFloat16, kInt8 };

// "float32", "bfloat16" or "int8", as in flags and model versions.
absl::string_view ComputeTypeName(ComputeType type);
// Errors: InvalidArgument for another name.
absl::StatusOr<ComputeType> ParseComputeType(absl::string_view name);

// When the two weights of a token are normalized to sum to 1.
enum class GateNormalize { kBeforeDropping, kAfterDropping };

// Probabilities in [0, 1) that a value is set to 0 in training.
struct DropoutConfig {
  double input = 0.1;      // embeddings with their positions
  double residual = 0.1;   // sublayer outputs and each stack's output
  double attention = 0.1;  // attention weights
  double ffn = 0.0;        // hidden activations of dense layers
  double moe = 0.0;        // hidden activations of experts

  bool operator==(const DropoutConfig&) const = default;
};

struct GateConfig {
  SecondExpertPolicy training_policy = SecondExpertPolicy::kRandom;
  SecondExpertPolicy evaluation_policy = SecondExpertPolicy::kAll;
  GateNormalize normalize = GateNormalize::kBeforeDropping;

  // Capacity is ceil(2 * S / E * factor), at least min_capacity; a factor of 0
  // means dropless.
  double training_capacity_factor = 1.0;
  double evaluation_capacity_factor = 0.0;
  int64_t min_capacity = 0;

  int64_t group_size = 0;  // S in tokens; 0: each microbatch is one group
  bool batch_prioritized = false;
  bool literal = false;  // a rejected second choice uses up a slot

  double balance_loss_coefficient = 0.01;
  double z_loss_coefficient = 0.0;

  bool operator==(const GateConfig&) const = default;
};

struct ModelConfig {
  std::string name = "gshard";

  int64_t encoder_layers = 6;
  int64_t decoder_layers = 6;
  int64_t model_width = 512;    // M
  int64_t ffn_width = 2048;     // hidden width of dense layers
  int64_t expert_width = 2048;  // H
  int64_t heads = 8;
  int64_t head_width = 64;  // same for queries, keys and values

  int64_t experts = 16;    // E in each MoE layer; 0: dense
  int64_t moe_period = 2;  // layer i of a stack is MoE if
  int64_t moe_offset = 0;  // i % moe_period == moe_offset; see IsMoeLayer

  int64_t source_vocabulary_size = 32000;
  int64_t target_vocabulary_size = 32000;
  bool shared_vocabulary = false;  // one embedding for source and target
  bool tie_output = true;          // output projection = target embedding
  bool scale_tied_logits = true;   // decoder output * M^-1/2, if tied

  Positions positions = Positions::kSinusoidal;
  int64_t max_positions = 1024;  // longest sentence in pieces
  bool expert_bias = false;

  ComputeType compute_type = ComputeType::kFloat32;
  ComputeType wire_type = ComputeType::kFloat32;

  DropoutConfig dropout;
  GateConfig gate;

  // Width of all heads together, which need not be M.
  int64_t attention_width() const { return heads * head_width; }

  // Whether layer `layer` of a stack, counted from 0, has an MoE layer.
  bool IsMoeLayer(int64_t layer) const {
    return experts > 0 && layer % moe_period == moe_offset;
  }

  // MoE layers in a stack of `layers` layers.
  int64_t NumMoeLayers(int64_t layers) const {
    return experts == 0 || layers <= moe_offset
               ? 0
               : (layers - 1 - moe_offset) / moe_period + 1;
  }

  bool operator==(const ModelConfig&) const = default;
};

// Checks ranges and constraints between fields.
//
// Errors: InvalidArgument, naming the field, its value and what was expected:
// "gate.min_capacity: expected 0 to 65536, got -1".
absl::Status ValidateModelConfig(const ModelConfig& config);

// Reads protobuf text (at most 1 MiB) and validates it.
//
// Errors: InvalidArgument, with line and column for what is not a ModelConfig
// (unknown or repeated fields, wrong types), else as ValidateModelConfig.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text);

// Prints every field in a fixed order; ParseModelConfig returns an equal
// config. REQUIRES: `config` is valid.
std::string ModelConfigToText(const ModelConfig& config);

// Parses the file at `path`. Errors start with the path: NotFound if it does
// not exist, else as ParseModelConfig.
absl::StatusOr<ModelConfig> LoadModelConfig(absl::string_view path);

}  // namespace gshard

#endif  // SERVICES_CONFIG_MODEL_CONFIG_H_
