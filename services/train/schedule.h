// The learning rate of each step.

#ifndef SERVICES_TRAIN_SCHEDULE_H_
#define SERVICES_TRAIN_SCHEDULE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gshard {

enum class WarmupShape {
  // multiplier / sqrt(max(step, warmup_steps)): the paper's. Constant, then
  // falling.
  kConstant,
  // Rises in a straight line from 0 to that constant at warmup_steps, then
  // falls the same way.
  kLinear,
};

struct ScheduleOptions {
  WarmupShape warmup = WarmupShape::kConstant;
  double multiplier = 1.0;       // > 0, finite
  int64_t warmup_steps = 10000;  // [0, 10^9]; 0 and 1 are no warm-up

  // Of the last steps the rate is also times (steps - t + 1) /
  // (cooldown_steps + 1), as in Hägele et al., arXiv 2405.18392.
  int64_t cooldown_steps = 0;  // [0, steps]
  int64_t steps = 0;           // of the job, >= 0; for cooldown_steps only
};

class Schedule {
 public:
  // Errors: InvalidArgument naming the option and its range.
  static absl::StatusOr<Schedule> Create(const ScheduleOptions& options);

  // Of update number `step`; the first is 1. Beyond the job's steps there is no
  // cooldown. REQUIRES: step >= 1.
  double LearningRate(int64_t step) const;

 private:
  explicit Schedule(const ScheduleOptions& options) : options_(options) {}

  ScheduleOptions options_;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_SCHEDULE_H_
