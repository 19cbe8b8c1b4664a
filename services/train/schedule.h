// The learning rate schedule.

#ifndef SERVICES_TRAIN_SCHEDULE_H_
#define SERVICES_TRAIN_SCHEDULE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gshard {

enum class WarmupShape {
  // multiplier / sqrt(max(step, warmup_steps)), as in the paper: first
  // constant, then falling.
  kConstant,
  // Rises linearly from 0 to that constant at warmup_steps, then falls in the
  // same way.
  kLinear,
};

struct ScheduleOptions {
  WarmupShape warmup = WarmupShape::kConstant;
  double multiplier = 1.0;       // > 0, finite
  int64_t warmup_steps = 10000;  // [0, 10^9]; 0 and 1: no warm-up

  // In the last cooldown_steps steps t, the rate is also multiplied by
  // (steps - t + 1) / (cooldown_steps + 1), as in Hägele et al., arXiv
  // 2405.18392.
  int64_t cooldown_steps = 0;  // [0, steps]
  int64_t steps = 0;           // of the job, >= 0; used only for cooldown
};

class Schedule {
 public:
  // Errors: InvalidArgument naming the option and its range.
  static absl::StatusOr<Schedule> Create(const ScheduleOptions& options);

  // The rate of update number `step`; the first is 1. There is no cooldown
  // beyond the job's steps. REQUIRES: step >= 1.
  double LearningRate(int64_t step) const;

 private:
  explicit Schedule(const ScheduleOptions& options) : options_(options) {}

  ScheduleOptions options_;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_SCHEDULE_H_
