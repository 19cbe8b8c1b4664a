#include "services/train/plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/model/parameters.h"
#include "services/ops/int8_panel.h"
#include "services/train/job_options.h"
#include "services/train/optimizer.h"
#include "services/train/parameter_store.h"

namespace gshard {
namespace {

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kBFloatBytes = 2;
constexpr int64_t kChoices = 2;         // experts per token
constexpr int64_t kGradientCopies = 2;  // of the microbatch and of the step

// `count` equal logical tensors as matrices; a vector has one row.
struct ParameterBlock {
  int64_t ParameterCounts::*kind;
  int64_t count = 1;
  int64_t rows = 1;
  int64_t columns = 1;
  bool factor = false;  // of a matrix product: see ModelConfig::compute_type

  int64_t size() const { return count * rows * columns; }
};

int64_t ParameterCounts::*KindOf(const ParameterSpec& spec) {
  using Counts = ParameterCounts;
  const absl::string_view name = spec.name;
  if (spec.per_expert) return &Counts::experts;
  if (absl::EndsWith(name, ".norm")) return &Counts::norm_scales;
  if (absl::EndsWith(name, ".gate")) return &Counts::gates;
  if (absl::EndsWith(name, "embedding")) return &Counts::embeddings;
  if (absl::EndsWith(name, "positions")) return &Counts::positions;
  if (absl::StrContains(name, "attention.")) return &Counts::attention;
  if (absl::StrContains(name, ".ffn.")) return &Counts::dense_ffn;
  CHECK(name == "output_projection");
  return &Counts::output_projection;
}

std::vector<ParameterBlock> ListParameters(const ModelConfig& model) {
  using Counts = ParameterCounts;
  std::vector<ParameterBlock> blocks;
  for (const ParameterSpec& spec : ModelParameters(model)) {
    const Dims logical(spec.dims.begin() + (spec.per_expert ? 1 : 0),
                       spec.dims.end());
    const Dims dims = OptimizerDims(logical, spec.row_dims);
    ParameterBlock block{.kind = KindOf(spec), .columns = dims.back()};
    if (spec.per_expert) block.count = model.experts;
    if (dims.size() > 1) block.rows = dims[0];
    block.factor = dims.size() > 1 && block.kind != &Counts::gates &&
                   block.kind != &Counts::positions &&
                   (block.kind != &Counts::embeddings ||
                    (model.tie_output && spec.name != "source_embedding"));
    blocks.push_back(block);
  }
  return blocks;
}

// Bytes of the block's weights in a serving session.
int64_t ServedBytes(const ParameterBlock& block, ComputeType type) {
  if (!block.factor || type == ComputeType::kFloat32) {
    return block.size() * kFloatBytes;
  }
  if (type == ComputeType::kBFloat16) return block.size() * kBFloatBytes;
  // The rows of a table of words are the columns of the product's matrix.
  const bool is_table = block.kind == &ParameterCounts::embeddings ||
                        block.kind == &ParameterCounts::output_projection;
  return block.count * Int8MatrixBytes(is_table ? block.columns : block.rows,
                                       is_table ? block.rows : block.columns);
}

// Numbers that the optimizer keeps for one parameter.
int64_t OptimizerNumbers(const Optimizer& optimizer,
                         const ParameterBlock& block) {
  const Dims dims =
      block.rows == 1 ? Dims{block.columns} : Dims{block.rows, block.columns};
  return static_cast<int64_t>(StateNumbers(optimizer, dims));
}

// Bytes of a count of numbers, capped at 1 EiB: at the limits of every
// configuration field they would overflow 64 bits.
int64_t EstimateBytes(double numbers) {
  return static_cast<int64_t>(
      std::min(numbers * kFloatBytes, 1152921504606846976.0));
}

// Numbers that a router keeps for the backward pass of one microbatch: the
// inputs of each sublayer's gradient, and the logits with their gradient.
double RouterTrainingActivations(const Plan& plan) {
  const ModelConfig& model = plan.model;
  const int64_t M = model.model_width;
  // Normalized input, queries, keys, values, two statistics of each softmax,
  // its product with the values, and the sum.
  const int64_t attention =
      2 * M + 4 * model.attention_width() + 2 * model.heads;
  const int64_t dense = 2 * M + model.ffn_width;
  // Gate logits and probabilities, rows sent and rows received.
  const int64_t moe = 2 * M + 2 * model.experts + 2 * kChoices * M;
  const int64_t moe_layers = plan.encoder_moe_layers + plan.decoder_moe_layers;
  const int64_t dense_layers =
      model.encoder_layers + model.decoder_layers - moe_layers;
  const int64_t per_token =
      (model.encoder_layers + 2 * model.decoder_layers) * attention +
      dense_layers * dense + moe_layers * moe +
      2 * model.target_vocabulary_size;
  return static_cast<double>(plan.options.tokens_per_microbatch) * per_token;
}

// Numbers for one batch in translation: the decoder's key-value cache (of
// itself and of the source), and the widest sublayer.
double RouterServingActivations(const Plan& plan) {
  const ModelConfig& model = plan.model;
  const int64_t M = model.model_width;
  const int64_t cache = model.decoder_layers * 4 * model.attention_width();
  const int64_t widest =
      3 * M + std::max({model.ffn_width, 4 * model.attention_width(),
                        2 * model.experts + 2 * kChoices * M});
  return static_cast<double>(plan.options.tokens_per_microbatch) *
         (cache + widest);
}

// Rows [M] that reach one worker in one MoE layer, with one microbatch of each
// router in flight and tokens spread evenly over the experts.
double WorkerRows(const Plan& plan) {
  if (plan.model.experts == 0) return 0;
  return static_cast<double>(kChoices) * plan.options.tokens_per_microbatch *
         plan.options.routers * plan.most_experts_per_worker /
         plan.model.experts;
}

int64_t RoundUpDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::Status CheckOption(const char* name, int64_t value, int64_t high) {
  if (value >= 1 && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected 1 to ", high, ", got ", value));
}

// See Plan::fewest_workers_training. A worker's memory never grows with the
// number of workers, and stays the same from one expert each on.
absl::StatusOr<int64_t> FewestWorkers(const ModelConfig& model,
                                      PlanOptions options,
                                      MemoryPlan Plan::*memory) {
  const int64_t limit = std::exchange(options.memory_bytes, 0);
  int64_t too_few = 0;
  int64_t enough = std::max<int64_t>(1, model.experts) + 1;
  while (enough - too_few > 1) {
    options.workers = too_few + (enough - too_few) / 2;
    ASSIGN_OR_RETURN(const Plan plan, MakePlan(model, options));
    ((plan.*memory).Total() <= limit ? enough : too_few) = options.workers;
  }
  return enough > std::max<int64_t>(1, model.experts) ? 0 : enough;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const ModelConfig& model,
                              const PlanOptions& options) {
  RETURN_IF_ERROR(ValidateModelConfig(model));
  RETURN_IF_ERROR(CheckOption("routers", options.routers, 65536));
  RETURN_IF_ERROR(CheckOption("workers", options.workers, 65536));
  RETURN_IF_ERROR(CheckOption("tokens_per_microbatch",
                              options.tokens_per_microbatch, 1 << 24));
  RETURN_IF_ERROR(CheckOption("microbatches_per_step",
                              options.microbatches_per_step, 65536));

  Plan plan;
  plan.model = model;
  plan.options = options;
  plan.encoder_moe_layers = model.NumMoeLayers(model.encoder_layers);
  plan.decoder_moe_layers = model.NumMoeLayers(model.decoder_layers);
  const int64_t moe_layers = plan.encoder_moe_layers + plan.decoder_moe_layers;
  plan.total_experts = moe_layers * model.experts;
  plan.fewest_experts_per_worker = model.experts / options.workers;
  plan.most_experts_per_worker = RoundUpDivide(model.experts, options.workers);

  const auto optimizer = MakeOptimizer(options.optimizer);
  int64_t dense_state = 0;
  int64_t expert_state = 0;  // of all experts
  // Of the largest dense tensor.
  int64_t largest = 0, largest_state = 0;
  // Bytes of factors of products: of the rounded copy beside weights that are
  // updated, and in place of others.
  int64_t dense_copies = 0, expert_copies = 0;
  int64_t dense_served = 0, expert_served = 0;
  for (const ParameterBlock& block : ListParameters(model)) {
    plan.parameters.*block.kind += block.size();
    const bool of_experts = block.kind == &ParameterCounts::experts;
    const int64_t state = OptimizerNumbers(*optimizer, block);
    (of_experts ? expert_state : dense_state) += block.count * state;
    (of_experts ? expert_served : dense_served) +=
        ServedBytes(block, model.compute_type);
    if (block.factor && model.compute_type != ComputeType::kFloat32) {
      (of_experts ? expert_copies : dense_copies) +=
          block.size() * kBFloatBytes;
    }
    if (of_experts || block.count == 0) continue;
    largest = std::max(largest, block.rows * block.columns);
    largest_state = std::max(largest_state, state);
  }
  const int64_t experts = plan.parameters.experts;
  const int64_t dense = plan.parameters.Total() - experts;

  // All experts have the same size, so one has an equal share of the total.
  const auto on_worker = [&](int64_t numbers) {
    return model.experts == 0
               ? 0
               : numbers / model.experts * plan.most_experts_per_worker;
  };
  plan.active_parameters =
      plan.parameters.attention + plan.parameters.dense_ffn +
      plan.parameters.gates +
      (model.experts == 0 ? 0 : experts / model.experts * kChoices);

  const int64_t row = model.model_width + model.expert_width;
  plan.router_serving = {
      .weights = dense_served,
      .activations = EstimateBytes(RouterServingActivations(plan))};
  plan.worker_serving = {.weights = on_worker(expert_served),
                         .activations = EstimateBytes(
                             WorkerRows(plan) * (row + model.model_width))};
  const int64_t dense_bytes = dense * kFloatBytes;
  if (plan.trains()) {
    plan.worker_training = {
        .weights = on_worker(experts) * kFloatBytes + on_worker(expert_copies),
        .gradients = kGradientCopies * on_worker(experts) * kFloatBytes,
        .optimizer_state = on_worker(expert_state) * kFloatBytes,
        // Each layer keeps its rows and hidden activations.
        .activations = EstimateBytes(WorkerRows(plan) * row * moe_layers)};
    plan.router_training = {
        .weights = dense_served,
        .gradients = dense_bytes,
        .activations = EstimateBytes(RouterTrainingActivations(plan))};
    plan.coordinator_training = {.weights = dense_bytes,
                                 .gradients = kGradientCopies * dense_bytes,
                                 .optimizer_state = dense_state * kFloatBytes};
  }
  if (plan.trains() && options.routers_reduce) {
    plan.coordinator_training = {};
    // Tensors are not split.
    const auto share = [&](int64_t all, int64_t of_largest) {
      return kFloatBytes *
             std::max(RoundUpDivide(all, options.routers), of_largest);
    };
    const auto kept = static_cast<double>(
        RoundUpDivide(options.microbatches_per_step, options.routers));
    plan.router_training.weights = dense_bytes + dense_copies;
    plan.router_training.gradients =
        EstimateBytes(kept * static_cast<double>(dense)) +
        share(dense, largest);
    plan.router_training.optimizer_state = share(dense_state, largest_state);
  }

  ExchangePlan& exchange = plan.exchange;
  exchange.layer_each_way =
      moe_layers == 0
          ? 0
          : kChoices * model.model_width *
                (model.wire_type == ComputeType::kBFloat16 ? kBFloatBytes
                                                           : kFloatBytes);
  exchange.source_token_forward =
      2 * plan.encoder_moe_layers * exchange.layer_each_way;
  exchange.target_token_forward =
      2 * plan.decoder_moe_layers * exchange.layer_each_way;
  if (plan.trains()) {
    exchange.source_token_backward = exchange.source_token_forward;
    exchange.target_token_backward = exchange.target_token_forward;
    plan.dense_gradient_bytes = dense_bytes;
  }
  if (options.memory_bytes > 0) {
    if (plan.trains()) {
      ASSIGN_OR_RETURN(plan.fewest_workers_training,
                       FewestWorkers(model, options, &Plan::worker_training));
    }
    ASSIGN_OR_RETURN(plan.fewest_workers_serving,
                     FewestWorkers(model, options, &Plan::worker_serving));
  }
  return plan;
}

}  // namespace gshard
