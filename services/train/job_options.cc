#include "services/train/job_options.h"

#include <variant>

#include "services/base/check.h"

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

Schedule MakeSchedule(const TrainingJob& job) {
  const LearningRateSchedule& config = job.schedule;
  absl::StatusOr<Schedule> schedule =
      Schedule::Create({.warmup = config.linear_warmup ? WarmupShape::kLinear
                                                       : WarmupShape::kConstant,
                        .multiplier = config.multiplier,
                        .warmup_steps = config.warmup_steps,
                        .cooldown_steps = config.cooldown_steps,
                        .steps = job.steps});
  CHECK(schedule.ok());  // the job was validated
  return *schedule;
}

LossConfig MakeLossConfig(const TrainingJob& job) {
  return {.label_smoothing = job.label_smoothing,
          .z_loss = job.vocabulary_z_loss};
}

}  // namespace gshard
