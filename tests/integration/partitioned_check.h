// Checks that a partitioned program computes the same on processes as on
// threads and unpartitioned.

#ifndef TESTS_INTEGRATION_PARTITIONED_CHECK_H_
#define TESTS_INTEGRATION_PARTITIONED_CHECK_H_

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/partition/ops/collective_ops.h"
#include "services/partition/partitioner.h"
#include "tests/testing/find_output.h"
#include "tests/testing/partitioned_steps.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {

// Checks all outputs of all steps: bits equal to those on threads, values
// within `tolerance` of the unpartitioned program (see TensorNear), integers
// exactly. Returns the unpartitioned outputs, empty after an error.
inline StepOutputs CheckOnProcesses(const StepsRun& run, float tolerance) {
  const auto whole = RunWhole(run);
  EXPECT_OK(whole);
  if (!whole.ok()) return {};
  const auto threads = RunOnThreads(run, *whole);
  EXPECT_OK(threads);
  const auto processes = RunOnProcesses(run, *whole);
  EXPECT_OK(processes);
  if (!threads.ok() || !processes.ok()) return {};
  for (int step = 0; step < run.steps; ++step) {
    for (size_t i = 0; i < run.program.outputs.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("step ", step, ", output ",
                                run.program.outputs[i].first));
      const Tensor& output = (*processes)[step][i];
      const Tensor& expected = (*whole)[step][i];
      EXPECT_TRUE(TensorEqual(output, (*threads)[step][i]));
      EXPECT_TRUE(expected.type() == ElementType::kFloat32
                      ? TensorNear(output, expected, tolerance)
                      : TensorEqual(output, expected));
      // A scalar is a loss, compared relative to itself instead of to 1.
      if (expected.dims().empty()) {
        EXPECT_NEAR(output.f32()[0] / expected.f32()[0], 1.0f, tolerance);
      }
    }
  }
  return *whole;
}

// Counts collectives with their axes: as "forward all_reduce model" up to the
// producer of output `name`, as "backward ..." after it.
inline std::map<std::string, int> CountCollectives(const StepsRun& run,
                                                   const std::string& name) {
  const DeviceMesh mesh = *DeviceMesh::Create(run.axes);
  const Program program = Partition(run.program, mesh)->program;
  const int32_t border = program.values[FindOutput(program, name)].producer;
  std::map<std::string, int> counts;
  for (int32_t n = 0; n < static_cast<int32_t>(program.nodes.size()); ++n) {
    const Node& node = program.nodes[n];
    if (!IsCollective(node.op->name)) continue;
    ++counts[absl::StrCat(n <= border ? "forward " : "backward ", node.op->name,
                          " ", StringAttribute(node.attributes, "axes"))];
  }
  return counts;
}

}  // namespace gshard

#endif  // TESTS_INTEGRATION_PARTITIONED_CHECK_H_
