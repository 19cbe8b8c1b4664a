// A convolution network whose images are split over 4 processes, in parts of
// uneven size, trains as on one device.

#include <gtest/gtest.h>

#include "tests/integration/partitioned_check.h"
#include "tests/testing/convolution_network.h"
#include "tests/testing/partitioned_steps.h"
#include "tests/testing/process_group.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

constexpr int kSteps = 4;

class SpatialTest : public ::testing::TestWithParam<size_t> {};

TEST_P(SpatialTest, LearnsTheSameOnFourProcesses) {
  const ImageMesh mesh = ImageMeshes()[GetParam()];
  ASSERT_OK_AND_ASSIGN(const StepsRun run,
                       ConvolutionNetwork(mesh.axes, mesh.cuts, kSteps));
  const StepOutputs whole = CheckOnProcesses(run, 1e-5f);
  ASSERT_EQ(whole.size(), kSteps);
  EXPECT_LT(whole.back()[0].f32()[0], whole.front()[0].f32()[0]);
}

INSTANTIATE_TEST_SUITE_P(, SpatialTest,
                         ::testing::Range<size_t>(0, ImageMeshes().size()));

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  return gshard::ProcessGroupMain(
      argc, argv, {{gshard::kPartitionedSteps, gshard::RunPartitionedSteps}});
}
