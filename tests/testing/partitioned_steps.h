// Steps of a partitioned program on devices that are threads or processes.
//
// An output "next/NAME" of the program is the value of its parameter NAME in
// the next step. A device uses its own tile of it, without joining it with the
// others'. Inputs are the same in all steps.

#ifndef TESTS_TESTING_PARTITIONED_STEPS_H_
#define TESTS_TESTING_PARTITIONED_STEPS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/graph/executor.h"
#include "services/graph/program.h"
#include "services/sharding/device_mesh.h"
#include "tests/services/collectives/world.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/process_group.h"

namespace gshard {

// Everything a device needs to know; tensors are whole.
struct StepsRun {
  Program program;  // for one device, annotated
  std::vector<MeshAxis> axes;
  TensorMap inputs;
  TensorMap parameters;
  int steps = 1;
  RowSizes row_sizes = {};
};

// The program's outputs, by step.
using StepOutputs = std::vector<std::vector<Tensor>>;

// Runs the program unpartitioned, on one device.
absl::StatusOr<StepOutputs> RunWhole(const StepsRun& run);

// Runs the partitioned program on threads. `whole`, from RunWhole, has the
// outputs' sizes.
//
// Errors: those of Partition; FailedPrecondition if "next/NAME" is placed
// differently from its parameter; Internal if copies on several devices differ.
// If several devices fail, the error is that of the lowest rank.
absl::StatusOr<StepOutputs> RunOnThreads(const StepsRun& run,
                                         const StepOutputs& whole);

// The same on processes, each of which partitions the program for itself. The
// main function must offer {kPartitionedSteps, RunPartitionedSteps} and
// register the operators and rules that the program uses.
absl::StatusOr<StepOutputs> RunOnProcesses(const StepsRun& run,
                                           const StepOutputs& whole);

inline constexpr char kPartitionedSteps[] = "partitioned_steps";
absl::Status RunPartitionedSteps(World& world, const std::string& folder);

// Runs one device's part, for processes that do more than that. `cancelled` is
// as in RunOptions, called before each node.
absl::StatusOr<StepOutputs> RunStepsOfDevice(
    const StepsRun& run, World& world,
    const std::function<bool()>& cancelled = nullptr);

// These pass a run to other processes, as a file in `folder`.
absl::Status WriteRun(const StepsRun& run, const std::string& folder);
absl::StatusOr<StepsRun> ReadRun(const std::string& folder);

}  // namespace gshard

#endif  // TESTS_TESTING_PARTITIONED_STEPS_H_
