// Reference for services/train/{optimizer,gradient_norm}.h in plain loops and
// double; optimizer state is still rounded to float32 between steps.

#ifndef TESTS_REFERENCE_OPTIMIZER_H_
#define TESTS_REFERENCE_OPTIMIZER_H_

#include "services/config/training_job.h"
#include "services/train/gradient_norm.h"
#include "services/train/optimizer.h"

namespace gshard::reference {

// Arguments as for Optimizer::Update.
void AdafactorUpdate(const AdafactorConfig& config,
                     absl::Span<const int64_t> dims, absl::Span<float> weight,
                     absl::Span<const float> gradient, double gradient_scale,
                     absl::Span<const absl::Span<float>> state, int64_t step,
                     double learning_rate);
void AdamUpdate(const AdamConfig& config, absl::Span<float> weight,
                absl::Span<const float> gradient, double gradient_scale,
                absl::Span<const absl::Span<float>> state, int64_t step,
                double learning_rate);

double SumOfSquares(absl::Span<const float> values);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_OPTIMIZER_H_
