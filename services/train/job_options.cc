#include "services/train/job_options.h"

#include "services/train/optimizer_kinds.h"

namespace gshard {

std::shared_ptr<const Optimizer> MakeOptimizer(const OptimizerConfig& config) {
  if (const auto* adafactor = std::get_if<AdafactorConfig>(&config)) {
    return MakeAdafactor(*adafactor);
  }
  return MakeAdam(std::get<AdamConfig>(config));
}

Schedule MakeSchedule(const TrainingJob& job) {
  return Schedule(job.schedule, job.steps);
}

LossConfig MakeLossConfig(const TrainingJob& job) {
  return {.label_smoothing = job.label_smoothing,
          .z_loss = job.vocabulary_z_loss};
}

}  // namespace gshard
