// The factories of each kind of optimizer, for MakeOptimizer(), and
// Adafactor's step, for a test device.

#ifndef SERVICES_TRAIN_OPTIMIZER_KINDS_H_
#define SERVICES_TRAIN_OPTIMIZER_KINDS_H_

#include <memory>

#include "absl/types/span.h"
#include "services/config/training_job.h"
#include "services/ops/adafactor_step.h"
#include "services/train/optimizer.h"

namespace gshard {

std::unique_ptr<Optimizer> MakeAdafactor(const AdafactorConfig& config);
std::unique_ptr<Optimizer> MakeAdam(const AdamConfig& config);

// One Adafactor step of a tensor of shape `dims`; `state` is as in
// Optimizer::StateShapes.
void UpdateByAdafactor(const AdafactorStep& step,
                       absl::Span<const int64_t> dims, absl::Span<float> weight,
                       absl::Span<const float> gradient,
                       absl::Span<const absl::Span<float>> state);

}  // namespace gshard

#endif  // SERVICES_TRAIN_OPTIMIZER_KINDS_H_
