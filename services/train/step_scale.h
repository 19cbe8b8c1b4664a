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
// included. Errors: FailedPrecondition if it is not finite or there are no
// tokens: the update must not be made.
absl::StatusOr<StepScale> ScaleStep(double squared_norm_of_sum,
                                    int64_t target_tokens, double clip_norm);

}  // namespace gshard

#endif  // SERVICES_TRAIN_STEP_SCALE_H_
