#include "services/train/schedule.h"

#include <algorithm>
#include <cmath>

#include "services/base/check.h"

namespace gshard {

double Schedule::LearningRate(int64_t step) const {
  CHECK(step >= 1);
  const double t = static_cast<double>(step);
  const double warmup = static_cast<double>(config_.warmup_steps);
  double rate = config_.multiplier / std::sqrt(std::max(t, warmup));
  if (config_.linear_warmup && t < warmup) {
    rate *= t / warmup;
  }
  const int64_t left = steps_ - step + 1;  // this one included
  if (left >= 1 && left <= config_.cooldown_steps) {
    rate *= static_cast<double>(left) /
            static_cast<double>(config_.cooldown_steps + 1);
  }
  return rate;
}

}  // namespace gshard
