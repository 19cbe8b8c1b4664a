#include "services/train/step_scale.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "services/train/gradient_norm.h"

namespace gshard {

absl::StatusOr<StepScale> ScaleStep(double squared_norm_of_sum,
                                    int64_t target_tokens, double clip_norm) {
  if (target_tokens < 1) {
    return absl::FailedPreconditionError("the step has no target tokens");
  }
  const double mean = 1.0 / static_cast<double>(target_tokens);
  const double squared_norm = squared_norm_of_sum * mean * mean;
  auto clip = GlobalNormScale(squared_norm, clip_norm);
  if (!clip.ok() ||
      squared_norm * *clip * *clip > std::numeric_limits<float>::max()) {
    return absl::OutOfRangeError(
        absl::StrCat("the gradient has the norm ", std::sqrt(squared_norm),
                     ", whose square float32 cannot represent"));
  }
  return StepScale{.gradient_norm = std::sqrt(squared_norm),
                   .gradient_scale = mean * *clip};
}

}  // namespace gshard
