// The weights of a GShard Transformer by name: shapes and initial values.
//
// Letters: M model width, N heads, D head width, H hidden width, E experts,
// V vocabulary. Names, for layer i of a stack ("encoder" or "decoder"):
//
//   source_embedding [V, M], target_embedding [V, M]   (or one: embedding)
//   output_projection [V, M]                           (unless tied)
//   source_positions, target_positions [P, M]          (if learned)
//   encoder.<i>.self_attention.{norm [M], query, key, value [M, N, D],
//                               output [N, D, M]}
//   decoder.<i>.cross_attention. ...                   likewise
//   encoder.<i>.ffn.{norm [M], wi [M, H], wo [H, M]}   dense layers
//   encoder.<i>.moe.{norm [M], gate [M, E], wi [E, M, H], wo [E, H, M]}
//                   and bi [E, H], bo [E, M] with expert_bias
//   encoder.norm [M], decoder.norm [M]
//
// A parameter whose outermost dimension is E is one logical tensor per expert,
// named "<name>/<expert>" in checkpoints.

#ifndef SERVICES_MODEL_PARAMETERS_H_
#define SERVICES_MODEL_PARAMETERS_H_

#include <string>
#include <vector>

#include "services/config/model_config.h"
#include "services/model/initializer.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct ParameterSpec {
  std::string name;
  Dims dims;
  bool per_expert = false;  // dims[0] is E
  Initializer initializer;
  // Number of leading dimensions that form the rows when an optimizer treats a
  // logical tensor of more than two dimensions as a matrix: query [M, N, D] is
  // [M, N*D], output [N, D, M] is [N*D, M].
  int row_dims = 1;
};

// All parameters, in the order in which the model uses them.
std::vector<ParameterSpec> ModelParameters(const ModelConfig& config);

// Those with a tensor per expert, or all others.
std::vector<ParameterSpec> ParametersOf(const ModelConfig& config,
                                        bool per_expert);

// The initial value of a whole dense parameter, or of the experts `experts`
// (global ids) of a per-expert one, [experts.size(), ...].
absl::StatusOr<Tensor> InitialValue(const ParameterSpec& spec, uint64_t seed,
                                    absl::Span<const int32_t> experts);

// "encoder.3.moe".
std::string LayerName(absl::string_view stack, int64_t layer,
                      absl::string_view part);

// Names of the MoE layers ("encoder.0.moe", ...) in the order of execution.
std::vector<std::string> MoeLayerNames(const ModelConfig& config);

}  // namespace gshard

#endif  // SERVICES_MODEL_PARAMETERS_H_
