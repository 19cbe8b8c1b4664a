// Converts TrainingJob to and from its message.

#ifndef SERVICES_CONFIG_TRAINING_JOB_PROTO_H_
#define SERVICES_CONFIG_TRAINING_JOB_PROTO_H_

#include "absl/status/statusor.h"
#include "proto/gshard/v1/job.pb.h"
#include "proto/gshard/v1/session.pb.h"
#include "services/config/training_job.h"

namespace gshard {

// Defaults for absent fields, then validation. Errors: as ValidateTrainingJob.
absl::StatusOr<TrainingJob> TrainingJobFromProto(
    const v1::TrainingJob& message);

// Sets every field.
v1::TrainingJob TrainingJobToProto(const TrainingJob& job);

// The optimizer alone, as workers get it. Defaults for absent fields, then
// validation. Errors: as ValidateTrainingJob.
absl::StatusOr<OptimizerConfig> OptimizerConfigFromProto(
    const v1::ExpertOptimizer& message);

// Sets every field.
v1::ExpertOptimizer OptimizerConfigToProto(const OptimizerConfig& config);

}  // namespace gshard

#endif  // SERVICES_CONFIG_TRAINING_JOB_PROTO_H_
