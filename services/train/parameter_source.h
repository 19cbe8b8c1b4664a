// The source of parameters: a checkpoint, or the seed of a job.

#ifndef SERVICES_TRAIN_PARAMETER_SOURCE_H_
#define SERVICES_TRAIN_PARAMETER_SOURCE_H_

#include <cstdint>
#include <memory>
#include <stop_token>
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
  std::string checkpoint_directory;  // if empty, initial_seed is used
  uint64_t initial_seed = 0;

  // For training.
  int64_t step = 0;           // already committed
  int64_t skipped_steps = 0;  // the last of these, not in the checkpoint
  // The checkpoint is of any step, and its optimizer state is not read.
  bool weights_only = false;

  std::stop_token stop;  // ends the load, with Cancelled
};

// Errors: InvalidArgument if a number is negative or more steps are skipped
// than committed.
absl::Status CheckSteps(const ParameterSource& source);

// Opens the checkpoint from which training continues; null for a seed. Errors:
// those of CheckpointReader::Open; FailedPrecondition if it is not of step
// `step` - `skipped_steps`, unless it is for weights only.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenToTrain(
    const ParameterSource& source);

// Reads parameters by name, without optimizer state: all dense ones, and of
// per-expert ones the parts of `experts` (global ids, ascending), as
// [experts, ...]. They are float32, or in the form given by `forms`; forms in
// panels are row-major instead where NewPanels() returns none, except int8,
// which is always in panels. They are on `device`, or on the host if null.
// `checkpoint` is null for initial values by `seed`.
//
// ComputeThreads() threads each read one logical tensor at a time. Memory: the
// returned parameters and these tensors; with a device, the host needs only one
// parameter and these tensors.
//
// Errors: those of CheckpointReader::Read, InitialValue, NewInt8Weight,
// CopyToDevice and RunConcurrently; ResourceExhausted if there is no memory;
// Cancelled if stop is requested, checked between logical tensors.
absl::StatusOr<TensorMap> ReadParameters(
    const std::vector<ParameterSpec>& specs,
    const std::vector<int32_t>& experts, const CheckpointReader* checkpoint,
    uint64_t seed, const WeightForms& forms = {}, Device* device = nullptr,
    const std::stop_token& stop = {});

// OK, or Cancelled if stop is requested.
absl::Status CheckNotStopped(const std::stop_token& stop);

}  // namespace gshard

#endif  // SERVICES_TRAIN_PARAMETER_SOURCE_H_
