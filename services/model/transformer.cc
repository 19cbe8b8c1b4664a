#include "services/model/transformer.h"

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/graph/gradient.h"
#include "services/model/layers.h"
#include "services/model/parameters.h"
#include "services/sharding/annotation.h"

namespace gshard {
namespace {

const Dim B = Dim::Symbol("B");
const Dim Ls = Dim::Symbol("Ls");
const Dim Lt = Dim::Symbol("Lt");
const Dim R = Dim::Symbol("R");
const Dim S = Dim::Symbol("S");
const Dim P = Dim::Symbol("P");

ValueId IntInput(Builder& b, absl::string_view name, Shape shape) {
  return b.Input(name, {ElementType::kInt32, std::move(shape)});
}

// An input with a row per sentence or hypothesis: split over routers.
ValueId BatchInput(Builder& b, absl::string_view name, ValueType type) {
  return Split(b, b.Input(name, std::move(type)), 0, "router");
}
ValueId BatchInput(Builder& b, absl::string_view name, Shape shape) {
  return BatchInput(b, name, ValueType{ElementType::kInt32, std::move(shape)});
}

// Token ids and their padding.
struct Tokens {
  ValueId ids;        // i32[B, L]
  ValueId positions;  // i32[L]
  ValueId lengths;    // i32[B]
  ValueId valid;      // i32[B, L]
};

Tokens TokenInputs(Builder& b, const std::string& side, const Dim& L) {
  return {.ids = BatchInput(b, side, Shape{B, L}),
          .positions = IntInput(b, side + "_positions", {L}),
          .lengths = BatchInput(b, side + "_lengths", Shape{B}),
          .valid = BatchInput(b, side + "_valid", Shape{B, L})};
}

ValueId EmbeddingTable(Builder& b, const ModelConfig& config, bool source) {
  const bool shared = config.shared_vocabulary;
  const bool projects = config.tie_output && (shared || !source);
  return b.Parameter(
      shared   ? "embedding"
      : source ? "source_embedding"
               : "target_embedding",
      {source && !shared ? config.source_vocabulary_size
                         : config.target_vocabulary_size,
       config.model_width},
      WeightTypeFor(projects ? config.compute_type : ComputeType::kFloat32));
}

ValueId EmbedInput(Layers& layers, const ModelConfig& config, Builder& b,
                   ValueId ids, ValueId positions, bool source) {
  const ValueId x =
      layers.AddPositions(layers.Embed(EmbeddingTable(b, config, source), ids),
                          positions, source ? "source" : "target");
  return layers.Dropout(x, config.dropout.input);
}

// The encoder's output [B, Ls, M].
ValueId Encode(Layers& layers, const ModelConfig& config, Builder& b,
               const Tokens& source) {
  ValueId x = EmbedInput(layers, config, b, source.ids, source.positions,
                         /*source=*/true);
  for (int64_t i = 0; i < config.encoder_layers; ++i) {
    const std::string name = LayerName("encoder", i, "self_attention");
    const ValueId normed = layers.Norm(name + ".norm", x);
    const ValueId heads =
        layers.Attend(layers.Query(name, normed),
                      layers.KeysValues(name, normed), source.lengths,
                      /*causal=*/false);
    x = layers.AddHeads(name, x, heads);
    x = layers.FeedForward("encoder", i, x, source.valid);
  }
  return layers.Dropout(layers.Norm("encoder.norm", x),
                        config.dropout.residual);
}

// Rows [N, M] of the decoder's output to logits [N, V].
ValueId Logits(Layers& layers, const ModelConfig& config, Builder& b,
               ValueId rows) {
  const double root = std::sqrt(static_cast<double>(config.model_width));
  ValueId table;
  if (config.tie_output) {
    table = EmbeddingTable(b, config, /*source=*/false);
    // The table represents rows sqrt(M) times as long (see Embed), and the
    // authors' code then multiplies by M^-1/2.
    if (!config.scale_tied_logits) rows = b.Scale(rows, root);
  } else {
    table = layers.Weight("output_projection",
                          {config.target_vocabulary_size, config.model_width});
  }
  return layers.Linear("nm,vm->nv", rows, table);
}

// The cross entropy of targets given sources, summed over the labels.
ValueId TextLoss(Layers& layers, const ModelConfig& config, Builder& b,
                 const LossConfig& loss) {
  const Tokens source = TokenInputs(b, "source", Ls);
  const Tokens target = TokenInputs(b, "target", Lt);
  const ValueId labels = BatchInput(b, "labels", Shape{B, Lt});
  const ValueId memory = Encode(layers, config, b, source);
  ValueId x = EmbedInput(layers, config, b, target.ids, target.positions,
                         /*source=*/false);
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    const std::string self = LayerName("decoder", i, "self_attention");
    ValueId normed = layers.Norm(self + ".norm", x);
    x = layers.AddHeads(
        self, x,
        layers.Attend(layers.Query(self, normed),
                      layers.KeysValues(self, normed), target.lengths,
                      /*causal=*/true));
    const std::string cross = LayerName("decoder", i, "cross_attention");
    normed = layers.Norm(cross + ".norm", x);
    x = layers.AddHeads(
        cross, x,
        layers.Attend(layers.Query(cross, normed),
                      layers.KeysValues(cross, memory), source.lengths,
                      /*causal=*/false));
    x = layers.FeedForward("decoder", i, x, target.valid);
  }
  x = layers.Dropout(layers.Norm("decoder.norm", x), config.dropout.residual);
  const ValueId logits =
      Logits(layers, config, b, b.Reshape(x, {B * Lt, config.model_width}));
  return b.CrossEntropy(logits, b.Reshape(labels, {B * Lt}),
                        loss.label_smoothing, loss.z_loss);
}

}  // namespace

absl::StatusOr<Program> BuildTrainProgram(const ModelConfig& config,
                                          const LossConfig& loss_config) {
  if (config.compute_type == ComputeType::kInt8) {
    return absl::InvalidArgumentError(
        "compute_type: expected FLOAT32 or BFLOAT16 to train, got INT8");
  }
  RegisterMoeOps();
  Builder b(absl::StrCat(config.name, ".train"));
  const ValueId target_tokens =
      b.Input("target_tokens", {ElementType::kFloat32, {}});
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  Layers layers(b, config, /*training=*/true, key);
  const ValueId cross_entropy = TextLoss(layers, config, b, loss_config);
  RETURN_IF_ERROR(b.status());
  const ValueId log_sum = b.program().producer(cross_entropy).outputs[1];

  // Auxiliary losses are means; times the tokens they scale like the sum.
  ValueId auxiliary = b.Constant(0.0);
  for (const MoeReport& report : layers.moe_reports()) {
    auxiliary = b.Add(auxiliary, b.Scale(report.gate.balance_loss,
                                         config.gate.balance_loss_coefficient));
    if (config.gate.z_loss_coefficient > 0.0) {
      auxiliary = b.Add(auxiliary, b.Scale(report.gate.z_loss,
                                           config.gate.z_loss_coefficient));
    }
  }
  const ValueId total =
      b.Add(cross_entropy, b.Multiply(auxiliary, target_tokens));

  std::vector<ValueId> parameters;
  std::vector<std::string> names;
  RETURN_IF_ERROR(b.status());
  std::map<std::string, ValueId> by_name;
  for (const Node* node : b.program().NodesOf("parameter")) {
    by_name[StringAttribute(node->attributes, "name")] = node->outputs[0];
  }
  for (const ParameterSpec& spec : ModelParameters(config)) {
    CHECK(by_name.contains(spec.name));
    parameters.push_back(by_name[spec.name]);
    names.push_back(spec.name);
  }
  ASSIGN_OR_RETURN(const std::vector<ValueId> gradients,
                   AddGradients(b, total, parameters));
  b.Output("loss", cross_entropy);
  b.Output("log_sum_square", b.ReduceMax(b.Multiply(log_sum, log_sum), {0}));
  layers.OutputMoeReports();
  for (size_t i = 0; i < names.size(); ++i) {
    b.Output("gradient/" + names[i], gradients[i]);
  }
  ASSIGN_OR_RETURN(const Program program, std::move(b).Finish());
  return Pruned(program);
}

absl::StatusOr<Program> BuildEvaluateProgram(const ModelConfig& config) {
  RegisterMoeOps();
  Builder b(absl::StrCat(config.name, ".evaluate"));
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  Layers layers(b, config, /*training=*/false, key);
  b.Output("loss", TextLoss(layers, config, b,
                            {.label_smoothing = 0.0, .z_loss = 0.0}));
  layers.OutputMoeReports();
  ASSIGN_OR_RETURN(const Program program, std::move(b).Finish());
  return Pruned(program);
}

absl::StatusOr<Program> BuildEncodeProgram(const ModelConfig& config,
                                           bool routing) {
  RegisterMoeOps();
  Builder b(absl::StrCat(config.name, ".encode"));
  const Tokens source = TokenInputs(b, "source", Ls);
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  Layers layers(b, config, /*training=*/false, key);
  const ValueId memory = Encode(layers, config, b, source);
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    const Layers::KeyValue cross =
        layers.KeysValues(LayerName("decoder", i, "cross_attention"), memory);
    b.Output(absl::StrCat("cross_key/", i), cross.key);
    b.Output(absl::StrCat("cross_value/", i), cross.value);
  }
  layers.OutputMoeReports();
  if (routing) layers.OutputRouting();
  ASSIGN_OR_RETURN(const Program program, std::move(b).Finish());
  return Pruned(program);
}

absl::StatusOr<Program> BuildDecodeProgram(const ModelConfig& config,
                                           bool routing) {
  RegisterMoeOps();
  Builder b(absl::StrCat(config.name, ".decode"));
  const Dim N = config.heads, D = config.head_width;
  const ValueId tokens = BatchInput(b, "tokens", Shape{R, 1});
  const ValueId positions = BatchInput(b, "positions", Shape{R, 1});
  const ValueId valid = BatchInput(b, "valid", Shape{R, 1});
  const ValueId slots = BatchInput(b, "slots", Shape{R});
  const ValueId lengths = BatchInput(b, "lengths", Shape{R});
  const ValueId pages = BatchInput(b, "pages", Shape{R, Dim::Symbol("T")});
  const ValueId source_lengths = BatchInput(b, "source_lengths", Shape{R});
  const ValueId source_pages =
      BatchInput(b, "source_pages", Shape{R, Dim::Symbol("Ts")});
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  Layers layers(b, config, /*training=*/false, key);

  ValueId x =
      EmbedInput(layers, config, b, tokens, positions, /*source=*/false);
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    const auto cache = [&](const char* name, ValueId entry) {
      const ValueId pool = b.Input(absl::StrCat(name, "/", i),
                                   {ElementType::kFloat32, {S, P, N, D}});
      const ValueId updated = b.AddOne("update_cache", {pool, entry, slots});
      b.Output(absl::StrCat(name, "/", i), updated);
      return updated;
    };
    const std::string self = LayerName("decoder", i, "self_attention");
    ValueId normed = layers.Norm(self + ".norm", x);
    const Layers::KeyValue entry = layers.KeysValues(self, normed);
    const Layers::KeyValue cached = {cache("key", entry.key),
                                     cache("value", entry.value)};
    x = layers.AddHeads(
        self, x,
        layers.AttendPages(layers.Query(self, normed), cached, pages, lengths));

    const std::string cross = LayerName("decoder", i, "cross_attention");
    normed = layers.Norm(cross + ".norm", x);
    x = layers.AddHeads(cross, x,
                        layers.AttendPages(layers.Query(cross, normed), cached,
                                           source_pages, source_lengths));
    x = layers.FeedForward("decoder", i, x, valid);
  }
  x = layers.Norm("decoder.norm", x);
  b.Output("logits",
           Logits(layers, config, b, b.Reshape(x, {R, config.model_width})));
  layers.OutputMoeReports();
  if (routing) layers.OutputRouting();
  ASSIGN_OR_RETURN(const Program program, std::move(b).Finish());
  return Pruned(program);
}

}  // namespace gshard
