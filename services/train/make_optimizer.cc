// MakeOptimizer: all of local_trainer.h that a worker needs.

#include <memory>
#include <variant>

#include "services/train/local_trainer.h"

namespace gshard {

std::shared_ptr<const Optimizer> MakeOptimizer(const OptimizerConfig& config) {
  OptimizerOptions options;
  if (const auto* adafactor = std::get_if<AdafactorConfig>(&config)) {
    options.kind = OptimizerKind::kAdafactor;
    options.adafactor = {
        .decay_exponent = adafactor->decay_exponent,
        .epsilon1 = adafactor->epsilon1,
        .epsilon2 = adafactor->epsilon2,
        .clip_threshold = adafactor->clipping_threshold,
        .multiply_by_parameter_scale = adafactor->multiply_by_parameter_scale,
        .min_dim_size_to_factor = adafactor->min_dim_size_to_factor};
  } else {
    const AdamConfig& adam = std::get<AdamConfig>(config);
    options.kind = OptimizerKind::kAdam;
    options.adam = {.beta1 = adam.beta1,
                    .beta2 = adam.beta2,
                    .epsilon = adam.epsilon,
                    .weight_decay = adam.weight_decay};
  }
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer =
      Optimizer::Create(options);
  CHECK(optimizer.ok());  // the job was validated
  return *std::move(optimizer);
}

}  // namespace gshard
