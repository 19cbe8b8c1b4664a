// Steps of a partitioned program on devices that are threads or processes.
//
// A program that has an output "next/NAME" says what its parameter NAME is in
// the step after; a device takes its own tile of it, which is never put
// together with the others'. Inputs are the same in all steps.

#ifndef TESTS_TESTING_PARTITIONED_STEPS_H_
#define TESTS_TESTING_PARTITIONED_STEPS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/collectives/world.h"
#include "services/graph/executor.h"
#include "services/graph/program.h"
#include "services/sharding/device_mesh.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/process_group.h"

namespace gshard {

// All that a device has to know; tensors are whole.
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

// The program as it is, on one device.
absl::StatusOr<StepOutputs> RunWhole(const StepsRun& run);

// Partitioned for the mesh. `whole`, from RunWhole, has the outputs' sizes.
//
// Errors: those of Partition; FailedPrecondition if "next/NAME" does not lie
// as its parameter does; Internal if copies on several devices differ; of the
// lowest rank that failed.
absl::StatusOr<StepOutputs> RunOnThreads(const StepsRun& run,
                                         const StepOutputs& whole);

// The same on processes, each of which partitions the program for itself. The
// main function needs {kPartitionedSteps, RunPartitionedSteps}, and to register
// what operators and rules the program takes.
absl::StatusOr<StepOutputs> RunOnProcesses(const StepsRun& run,
                                           const StepOutputs& whole);

inline constexpr char kPartitionedSteps[] = "partitioned_steps";
absl::Status RunPartitionedSteps(World& world, const std::string& folder);

// One device's part, for processes that are to do more than take part.
// `cancelled` as in RunOptions, called before each node.
absl::StatusOr<StepOutputs> RunStepsOfDevice(
    const StepsRun& run, World& world,
    const std::function<bool()>& cancelled = nullptr);

// A run on its way to other processes, as a file in `folder`.
absl::Status WriteRun(const StepsRun& run, const std::string& folder);
absl::StatusOr<StepsRun> ReadRun(const std::string& folder);

}  // namespace gshard

#endif  // TESTS_TESTING_PARTITIONED_STEPS_H_
