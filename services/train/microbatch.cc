#include "services/train/microbatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/model/inputs.h"
#include "services/model/parameters.h"

namespace gshard {
namespace {

constexpr char kGradientPrefix[] = "gradient/";

// The square root of a maximum of squares; without tokens there is none.
double Root(const Tensor& square) {
  return std::sqrt(std::max(0.0, static_cast<double>(*square.f32())));
}

}  // namespace

MicrobatchRunner::MicrobatchRunner(const ModelConfig& config, Program program,
                                   Device* device, bool keep_gradients)
    : moe_layers_(MoeLayerNames(config)),
      executor_(std::move(program), device,
                keep_gradients ? std::vector<std::string>{kGradientPrefix}
                               : std::vector<std::string>{}) {}

absl::Status MicrobatchRunner::Load(TensorMap& parameters) const {
  RETURN_IF_ERROR(
      CastToBf16(executor_.weight_forms(), executor_.device(), parameters));
  if (executor_.device() == nullptr) return absl::OkStatus();
  // One at a time, so that the host never holds a second copy of all of them.
  for (auto& [name, tensor] : parameters) {
    if (!tensor.on_host()) continue;
    ASSIGN_OR_RETURN(tensor, CopyToDevice(*executor_.device(), tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<MicrobatchResult> MicrobatchRunner::Run(
    const Batch& batch, uint64_t seed, int64_t step, int64_t index,
    const TensorMap& parameters, SegmentRunner* segments,
    std::function<bool()> cancelled) const {
  return RunKeyed(batch, FoldIn(FoldIn(FoldIn(seed, step), index), "step"),
                  parameters, segments, std::move(cancelled));
}

absl::StatusOr<StepStatistics> MicrobatchRunner::Evaluate(
    const Batch& batch, uint64_t seed, int64_t index,
    const TensorMap& parameters, SegmentRunner* segments,
    std::function<bool()> cancelled) const {
  ASSIGN_OR_RETURN(MicrobatchResult result,
                   RunKeyed(batch, FoldIn(FoldIn(seed, index), "validation"),
                            parameters, segments, std::move(cancelled)));
  CHECK(result.gradients.empty());
  return std::move(result.statistics);
}

absl::StatusOr<MicrobatchResult> MicrobatchRunner::RunKeyed(
    const Batch& batch, uint64_t key, const TensorMap& parameters,
    SegmentRunner* segments, std::function<bool()> cancelled) const {
  TensorMap inputs;
  AddTokenInputs("source", batch.source, batch.source_lengths, inputs);
  AddTokenInputs("target", batch.target_input, batch.target_lengths, inputs);
  inputs["labels"] = batch.target_labels;
  inputs["target_tokens"] =
      Tensor::Scalar(static_cast<float>(batch.target_tokens));
  inputs["key"] = KeyInput(key);

  ASSIGN_OR_RETURN(
      std::vector<Tensor> outputs,
      executor_.Run(std::move(inputs), parameters,
                    {.context = RunContext().With<SegmentRunner>(segments),
                     .cancelled = std::move(cancelled)}));

  MicrobatchResult result;
  StepStatistics& statistics = result.statistics;
  statistics.target_tokens = batch.target_tokens;
  statistics.sentences = batch.source.dim(0);
  statistics.layers.resize(moe_layers_.size());
  const auto layer = [&](absl::string_view name) -> LayerStatistics& {
    const auto found = std::find(moe_layers_.begin(), moe_layers_.end(), name);
    CHECK(found != moe_layers_.end());
    return statistics.layers[found - moe_layers_.begin()];
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    absl::string_view name = executor_.program().outputs[i].first;
    Tensor& value = outputs[i];
    if (absl::ConsumePrefix(&name, kGradientPrefix)) {
      result.gradients.emplace_back(std::string(name), std::move(value));
    } else if (absl::ConsumePrefix(&name, "kept/")) {
      const absl::Span<const int32_t> kept =
          static_cast<const Tensor&>(value).span<int32_t>();
      layer(name).expert_rows.assign(kept.begin(), kept.end());
    } else if (absl::ConsumePrefix(&name, "overflow/")) {
      layer(name).overflow_first = value.i32()[0];
      layer(name).overflow_second = value.i32()[1];
    } else if (absl::ConsumePrefix(&name, "balance_loss/")) {
      layer(name).balance_loss_sum = value.f32()[0];
      layer(name).groups = 1;
    } else if (absl::ConsumePrefix(&name, "gate_log_sum_square/")) {
      layer(name).logit_magnitude = Root(value);
    } else if (name == "log_sum_square") {
      statistics.logit_magnitude = Root(value);
    } else if (name == "loss") {
      statistics.loss_sum = value.f32()[0];
    }
  }
  int64_t decoder_tokens = 0;
  for (const int32_t length : batch.target_lengths.span<int32_t>()) {
    decoder_tokens += length;
  }
  for (size_t i = 0; i < moe_layers_.size(); ++i) {
    LayerStatistics& moe = statistics.layers[i];
    const int64_t kept = std::accumulate(moe.expert_rows.begin(),
                                         moe.expert_rows.end(), int64_t{0});
    // Every token has a first choice.
    const int64_t tokens = absl::StartsWith(moe_layers_[i], "encoder")
                               ? batch.source_tokens
                               : decoder_tokens;
    moe.routed_first = tokens - moe.overflow_first;
    moe.routed_second = kept - moe.routed_first;
  }
  return result;
}

}  // namespace gshard
