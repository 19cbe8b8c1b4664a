// A Transformer whose heads and hidden width are split over processes trains
// as it does on one device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "services/base/status_macros.h"
#include "tests/integration/partitioned_check.h"
#include "tests/integration/transformer_program.h"
#include "tests/testing/gloo_members.h"
#include "tests/testing/partitioned_steps.h"
#include "tests/testing/process_group.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int kSteps = 30;

const std::vector<MeshAxis>& DataAndModel() {
  static const auto& axes =
      *new std::vector<MeshAxis>{{"data", 2, ""}, {"model", 2, ""}};
  return axes;
}

void ExpectTrains(const StepsRun& run) {
  const StepOutputs whole = CheckOnProcesses(run, 1e-5f);
  ASSERT_EQ(whole.size(), kSteps);
  EXPECT_LT(whole.back()[0].f32()[0], 0.5f * whole.front()[0].f32()[0]);
}

struct Case {
  std::string name;
  int64_t devices;
  int64_t H;
};

class TensorParallel : public ::testing::TestWithParam<Case> {};

// Each sublayer all-reduces its output in the forward pass and the gradient of
// its input in the backward pass.
TEST_P(TensorParallel, TrainsWithTheLossesOfOneDevice) {
  TransformerSizes sizes;
  sizes.H = GetParam().H;
  ASSERT_OK_AND_ASSIGN(const StepsRun run,
                       TransformerProgram(sizes).Build(
                           {{"model", GetParam().devices, ""}}, kSteps));
  EXPECT_THAT(CountCollectives(run, "loss"),
              UnorderedElementsAre(Pair("forward all_reduce model", 4),
                                   Pair("backward all_reduce model", 4)));
  ExpectTrains(run);
}

INSTANTIATE_TEST_SUITE_P(, TensorParallel,
                         ::testing::Values(Case{"TwoDevices", 2, 12},
                                           Case{"FourDevices", 4, 12},
                                           Case{"UnevenWidth", 4, 10},
                                           Case{"NoWidthForTheLast", 4, 9}),
                         [](const auto& info) { return info.param.name; });

// Three sentences are also split over two devices: the gradients of all 16
// parameters and the loss are all-reduced along "data".
TEST(DataAndTensorParallel, TrainsWithTheLossesOfOneDevice) {
  TransformerSizes sizes;
  sizes.H = 11;
  ASSERT_OK_AND_ASSIGN(const StepsRun run,
                       TransformerProgram(sizes).Build(DataAndModel(), kSteps));
  EXPECT_THAT(CountCollectives(run, "loss"),
              UnorderedElementsAre(Pair("forward all_reduce model", 4),
                                   Pair("forward all_reduce data", 1),
                                   Pair("backward all_reduce model", 4),
                                   Pair("backward all_reduce data", 16)));
  ExpectTrains(run);
}

// Stops in the middle of the third step.
absl::Status StopInStep(World& world, const std::string& folder, bool dies) {
  ASSIGN_OR_RETURN(const StepsRun run, ReadRun(folder));
  ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create(run.axes));
  ASSIGN_OR_RETURN(const Partitioned partitioned, Partition(run.program, mesh));
  const size_t last = partitioned.program.nodes.size() * 5 / 2;
  size_t node = 0;
  const auto stop = [&] {
    if (++node == last && dies) raise(SIGKILL);
    return node == last;
  };
  return RunStepsOfDevice(run, world, stop).status();
}

absl::Status Die(World& world, const std::string& folder) {
  return StopInStep(world, folder, /*dies=*/true);
}
absl::Status Fail(World& world, const std::string& folder) {
  return StopInStep(world, folder, /*dies=*/false);
}

// The statuses when device 1 of 2 x 2 runs `name`. Checks that the others fail:
// device 2 shares no group with device 1, but with two that do.
std::vector<absl::Status> RunWithLost(const std::string& name) {
  const RendezvousFolder folder;
  const auto run =
      TransformerProgram(TransformerSizes()).Build(DataAndModel(), kSteps);
  EXPECT_OK(run);
  if (run.ok()) EXPECT_OK(WriteRun(*run, folder.path()));
  const std::vector<absl::Status> statuses = RunProcesses(
      {kPartitionedSteps, name, kPartitionedSteps, kPartitionedSteps},
      folder.path());
  for (const int rank : {0, 2, 3}) {
    EXPECT_THAT(statuses[rank],
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("all_reduce"), HasSubstr("exchange"),
                               HasSubstr("of 2"))))
        << rank;
  }
  return statuses;
}

TEST(LostProcessTest, TheOthersMissAProcessThatDiesInAStep) {
  EXPECT_THAT(RunWithLost("die")[1],
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("exit code 137")));
}

TEST(LostProcessTest, TheOthersMissAProcessThatFailsInAStep) {
  EXPECT_THAT(RunWithLost("fail")[1], StatusIs(absl::StatusCode::kCancelled,
                                               HasSubstr("was cancelled")));
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  return gshard::ProcessGroupMain(
      argc, argv,
      {{gshard::kPartitionedSteps, gshard::RunPartitionedSteps},
       {"die", gshard::Die},
       {"fail", gshard::Fail}});
}
