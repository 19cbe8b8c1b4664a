// The learning rate schedule.

#ifndef SERVICES_TRAIN_SCHEDULE_H_
#define SERVICES_TRAIN_SCHEDULE_H_

#include <cstdint>

#include "services/config/training_job.h"

namespace gshard {

// Up to warmup_steps the rate is constant, as in the paper, or with
// linear_warmup it rises from 0; then it falls as the root of the step. In the
// last cooldown_steps steps t it is also multiplied by (steps - t + 1) /
// (cooldown_steps + 1), as in Hägele et al., arXiv 2405.18392.
class Schedule {
 public:
  // `steps` are those of the job. REQUIRES: the job has been validated.
  Schedule(const LearningRateSchedule& config, int64_t steps)
      : config_(config), steps_(steps) {}

  // The rate of update number `step`; the first is 1. There is no cooldown
  // beyond the job's steps. REQUIRES: step >= 1.
  double LearningRate(int64_t step) const;

 private:
  LearningRateSchedule config_;
  int64_t steps_;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_SCHEDULE_H_
