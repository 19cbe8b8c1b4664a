// The factor by which a step multiplies its gradients.

#ifndef SERVICES_TRAIN_STEP_SCALE_H_
#define SERVICES_TRAIN_STEP_SCALE_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace gshard {

// The norm of a step's gradients, and the factor for their sums.
struct StepScale {
  double gradient_norm = 0.0;   // of the mean over target tokens
  double gradient_scale = 0.0;  // clipping factor / target_tokens
};

// `squared_norm_of_sum` is TotalSquaredNorm over all parameters, experts
// included. Errors, with which the update must not be made: FailedPrecondition
// if there are no tokens; OutOfRange if the squared norm is not finite, or
// after scaling is no float32, as optimizers keep averages of squares.
absl::StatusOr<StepScale> ScaleStep(double squared_norm_of_sum,
                                    int64_t target_tokens, double clip_norm);

}  // namespace gshard

#endif  // SERVICES_TRAIN_STEP_SCALE_H_
