#include "services/train/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {

absl::StatusOr<Schedule> Schedule::Create(const ScheduleOptions& options) {
  constexpr int64_t kMaxWarmupSteps = 1'000'000'000;
  if (!(options.multiplier > 0) || !std::isfinite(options.multiplier)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "multiplier must be > 0 and finite, got ", options.multiplier));
  }
  if (options.warmup_steps < 0 || options.warmup_steps > kMaxWarmupSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("warmup_steps must be in [0, ", kMaxWarmupSteps, "], got ",
                     options.warmup_steps));
  }
  if (options.cooldown_steps < 0 || options.cooldown_steps > options.steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("cooldown_steps must be in [0, ", options.steps,
                     "], the steps, got ", options.cooldown_steps));
  }
  return Schedule(options);
}

double Schedule::LearningRate(int64_t step) const {
  CHECK(step >= 1);
  const double t = static_cast<double>(step);
  const double warmup =
      std::max(1.0, static_cast<double>(options_.warmup_steps));
  double rate = options_.multiplier / std::sqrt(std::max(t, warmup));
  if (options_.warmup == WarmupShape::kLinear && t < warmup) {
    rate *= t / warmup;
  }
  const int64_t left = options_.steps - step + 1;  // this one included
  if (left >= 1 && left <= options_.cooldown_steps) {
    rate *= static_cast<double>(left) /
            static_cast<double>(options_.cooldown_steps + 1);
  }
  return rate;
}

}  // namespace gshard
