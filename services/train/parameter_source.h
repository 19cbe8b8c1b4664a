// Where parameters come from: a checkpoint, or the seed of a job.

#ifndef SERVICES_TRAIN_PARAMETER_SOURCE_H_
#define SERVICES_TRAIN_PARAMETER_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"
#include "services/graph/device.h"
#include "services/graph/executor.h"
#include "services/model/parameters.h"

namespace gshard {

struct ParameterSource {
  std::string checkpoint_directory;  // if empty, initial_seed counts
  uint64_t initial_seed = 0;

  // Of training.
  int64_t step = 0;           // committed already
  int64_t skipped_steps = 0;  // of these, the last, left out by the checkpoint
};

// Errors: InvalidArgument if the steps are negative or do not fit together.
absl::Status CheckSteps(const ParameterSource& source);

// The checkpoint that training goes on from; null for the seed. Errors: those
// of CheckpointReader::Open; FailedPrecondition if it is of another step.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenToTrain(
    const ParameterSource& source);

// Parameters without optimizer state, by name: dense ones, and of per-expert
// ones those of `experts` (global ids, ascending), [experts, ...]; as float32,
// or those in `forms` in that form, in panels but of int8 only where
// NewPanels() has room for them; on `device`, or where that is null on the
// host. ComputeThreads() threads each read one logical tensor at a time. Takes
// the memory of what it returns and of these tensors, with a device on the host
// that of one parameter and these. `checkpoint` is null for first values by
// `seed`. Errors: those of CheckpointReader::Read, InitialValue, NewInt8Weight,
// CopyToDevice and RunConcurrently.
absl::StatusOr<TensorMap> ReadParameters(
    const std::vector<ParameterSpec>& specs,
    const std::vector<int32_t>& experts, const CheckpointReader* checkpoint,
    uint64_t seed, const WeightForms& forms = {}, Device* device = nullptr);

}  // namespace gshard

#endif  // SERVICES_TRAIN_PARAMETER_SOURCE_H_
