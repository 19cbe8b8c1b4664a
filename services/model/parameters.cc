#include "services/model/parameters.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

Initializer FanIn(int64_t fan_in) {
  return {.kind = InitializerKind::kUniformFanIn, .fan_in = fan_in};
}
Initializer Normal(double stddev) {
  return {.kind = InitializerKind::kNormal, .stddev = stddev};
}
Initializer Ones() { return {.kind = InitializerKind::kOnes}; }
Initializer Zeros() { return {.kind = InitializerKind::kZeros}; }

class SpecList {
 public:
  explicit SpecList(const ModelConfig& config) : config_(config) {}

  void Add(std::string name, Dims dims, Initializer initializer,
           bool per_expert = false) {
    specs_.push_back({.name = std::move(name),
                      .dims = std::move(dims),
                      .per_expert = per_expert,
                      .initializer = initializer});
  }

  void AddAttention(const std::string& name) {
    const int64_t M = config_.model_width;
    const int64_t N = config_.heads;
    const int64_t D = config_.head_width;
    Add(name + ".norm", {M}, Ones());
    Add(name + ".query", {M, N, D}, FanIn(M));
    Add(name + ".key", {M, N, D}, FanIn(M));
    Add(name + ".value", {M, N, D}, FanIn(M));
    Add(name + ".output", {N, D, M}, FanIn(N * D));
    specs_.back().row_dims = 2;
  }

  void AddFeedForward(absl::string_view stack, int64_t layer) {
    const int64_t M = config_.model_width;
    if (!config_.IsMoeLayer(layer)) {
      const std::string name = LayerName(stack, layer, "ffn");
      Add(name + ".norm", {M}, Ones());
      Add(name + ".wi", {M, config_.ffn_width}, FanIn(M));
      Add(name + ".wo", {config_.ffn_width, M}, FanIn(config_.ffn_width));
      return;
    }
    const std::string name = LayerName(stack, layer, "moe");
    const int64_t E = config_.experts;
    const int64_t H = config_.expert_width;
    Add(name + ".norm", {M}, Ones());
    Add(name + ".gate", {M, E}, FanIn(M));
    Add(name + ".wi", {E, M, H}, FanIn(M), /*per_expert=*/true);
    if (config_.expert_bias) Add(name + ".bi", {E, H}, Zeros(), true);
    Add(name + ".wo", {E, H, M}, FanIn(H), /*per_expert=*/true);
    if (config_.expert_bias) Add(name + ".bo", {E, M}, Zeros(), true);
  }

  std::vector<ParameterSpec> Take() && { return std::move(specs_); }

 private:
  const ModelConfig& config_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::string LayerName(absl::string_view stack, int64_t layer,
                      absl::string_view part) {
  return absl::StrCat(stack, ".", layer, ".", part);
}

std::vector<std::string> MoeLayerNames(const ModelConfig& config) {
  std::vector<std::string> names;
  const auto add = [&](absl::string_view stack, int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) {
      if (config.IsMoeLayer(i)) names.push_back(LayerName(stack, i, "moe"));
    }
  };
  add("encoder", config.encoder_layers);
  add("decoder", config.decoder_layers);
  return names;
}

std::vector<ParameterSpec> ModelParameters(const ModelConfig& config) {
  SpecList list(config);
  const int64_t M = config.model_width;
  // Rows of tables have a norm of about 1; lookups multiply by sqrt(M).
  const Initializer embedding = Normal(1.0 / std::sqrt(static_cast<double>(M)));
  const bool learned = config.positions == Positions::kLearned;
  if (config.shared_vocabulary) {
    list.Add("embedding", {config.target_vocabulary_size, M}, embedding);
  } else {
    list.Add("source_embedding", {config.source_vocabulary_size, M}, embedding);
    list.Add("target_embedding", {config.target_vocabulary_size, M}, embedding);
  }
  if (learned) {
    list.Add("source_positions", {config.max_positions, M}, Normal(0.02));
    list.Add("target_positions", {config.max_positions, M}, Normal(0.02));
  }
  for (int64_t i = 0; i < config.encoder_layers; ++i) {
    list.AddAttention(LayerName("encoder", i, "self_attention"));
    list.AddFeedForward("encoder", i);
  }
  list.Add("encoder.norm", {M}, Ones());
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    list.AddAttention(LayerName("decoder", i, "self_attention"));
    list.AddAttention(LayerName("decoder", i, "cross_attention"));
    list.AddFeedForward("decoder", i);
  }
  list.Add("decoder.norm", {M}, Ones());
  if (!config.tie_output) {
    list.Add("output_projection", {config.target_vocabulary_size, M}, FanIn(M));
  }
  return std::move(list).Take();
}

std::vector<ParameterSpec> ParametersOf(const ModelConfig& config,
                                        bool per_expert) {
  std::vector<ParameterSpec> specs;
  for (ParameterSpec& spec : ModelParameters(config)) {
    if (spec.per_expert == per_expert) specs.push_back(std::move(spec));
  }
  return specs;
}

absl::StatusOr<Tensor> InitialValue(const ParameterSpec& spec, uint64_t seed,
                                    absl::Span<const int32_t> experts) {
  if (!spec.per_expert) {
    Tensor value(ElementType::kFloat32, spec.dims);
    RETURN_IF_ERROR(
        Initialize(spec.initializer, seed, spec.name, value.span<float>()));
    return value;
  }
  Dims dims = spec.dims;
  dims[0] = static_cast<int64_t>(experts.size());
  Tensor value(ElementType::kFloat32, dims);
  for (size_t i = 0; i < experts.size(); ++i) {
    Tensor row = value.Rows(i, i + 1);
    RETURN_IF_ERROR(Initialize(spec.initializer, seed,
                               ExpertTensorName(spec.name, experts[i]),
                               row.span<float>()));
  }
  return value;
}

}  // namespace gshard
