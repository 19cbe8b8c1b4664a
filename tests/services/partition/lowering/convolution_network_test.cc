// A network over images that are split by batch, by position in one and two
// dimensions, and both, learns the same as on one device.

#include "tests/testing/convolution_network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/partition/ops/collective_ops.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

constexpr int kSteps = 6;
// Allows for float sums in another order, over kSteps steps.
constexpr float kNetworkTolerance = 2e-5f;

TEST(ConvolutionNetworkTest, LearnsTheSameOnFourDevices) {
  for (const ImageMesh& mesh : ImageMeshes()) {
    ASSERT_OK_AND_ASSIGN(const StepsRun run,
                         ConvolutionNetwork(mesh.axes, mesh.cuts, kSteps));
    ASSERT_OK_AND_ASSIGN(const StepOutputs whole, RunWhole(run));
    ASSERT_OK_AND_ASSIGN(const StepOutputs parts, RunOnThreads(run, whole));
    for (int step = 0; step < kSteps; ++step) {
      for (size_t i = 0; i < whole[step].size(); ++i) {
        EXPECT_TRUE(
            TensorNear(parts[step][i], whole[step][i], kNetworkTolerance))
            << run.program.outputs[i].first << " in step " << step;
      }
    }
    EXPECT_LT(whole[kSteps - 1][0].f32()[0], 0.98f * whole[0][0].f32()[0]);
  }
}

// No collective gathers images: devices only exchange the borders of positions
// and sum gradients.
TEST(ConvolutionNetworkTest, ImagesAreNeverGathered) {
  for (const ImageMesh& mesh : ImageMeshes()) {
    ASSERT_OK_AND_ASSIGN(const StepsRun run,
                         ConvolutionNetwork(mesh.axes, mesh.cuts, 1));
    ASSERT_OK_AND_ASSIGN(const DeviceMesh devices,
                         DeviceMesh::Create(mesh.axes));
    ASSERT_OK_AND_ASSIGN(const Partitioned partitioned,
                         Partition(run.program, devices));
    for (const Node& node : partitioned.program.nodes) {
      if (!IsCollective(node.op->name)) continue;
      const Shape& shape = partitioned.program.type(node.outputs[0]).shape;
      const bool gathers =
          node.op->name == "all_gather" || node.op->name == "all_to_all";
      EXPECT_FALSE(gathers && shape.size() == 4)
          << node.op->name << " of " << ShapeToString(shape);
    }
  }
}

}  // namespace
}  // namespace gshard
