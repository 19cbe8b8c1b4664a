// The optimizer, learning rates and loss of a job.

#ifndef SERVICES_TRAIN_JOB_OPTIONS_H_
#define SERVICES_TRAIN_JOB_OPTIONS_H_

#include <memory>

#include "services/config/training_job.h"
#include "services/model/transformer.h"
#include "services/train/optimizer.h"
#include "services/train/schedule.h"

namespace gshard {

// REQUIRES, for all of these: the job has been validated.
std::shared_ptr<const Optimizer> MakeOptimizer(const OptimizerConfig& config);
Schedule MakeSchedule(const TrainingJob& job);
LossConfig MakeLossConfig(const TrainingJob& job);

}  // namespace gshard

#endif  // SERVICES_TRAIN_JOB_OPTIONS_H_
