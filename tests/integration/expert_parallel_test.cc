// An MoE layer whose tokens and experts are both split over the same processes
// gives the results and gradients of one device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/moe/graph_ops.h"
#include "tests/integration/partitioned_check.h"
#include "tests/services/moe/partition_layer.h"
#include "tests/testing/partitioned_steps.h"
#include "tests/testing/process_group.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::IsSupersetOf;
using ::testing::Pair;

// `sent` is the number of row tensors sent to the experts in the forward pass.
void CheckMoeLayer(const MoeLayer& layer, std::vector<MeshAxis> axes,
                   int sent = 1) {
  StepsRun run;
  ASSERT_OK_AND_ASSIGN(run.program, MoeLayerProgram(layer));
  run.axes = std::move(axes);
  run.inputs = MoeLayerInputs(layer);
  run.parameters = MoeLayerParameters(layer);
  // Algorithm 2: rows go to their experts and back, and so do their gradients.
  EXPECT_THAT(CountCollectives(run, "y"),
              IsSupersetOf({Pair("forward ragged_all_to_all d", sent),
                            Pair("forward ragged_all_to_all_back d", 1),
                            Pair("backward ragged_all_to_all d", 1),
                            Pair("backward ragged_all_to_all_back d", 1)}));
  CheckOnProcesses(run, 1e-5f);
}

MoeLayer OnOneAxis() {
  MoeLayer layer;
  layer.tokens = layer.experts = "d";
  return layer;
}

TEST(ExpertParallelTest, EqualsOneDeviceForwardAndBackward) {
  CheckMoeLayer(OnOneAxis(), {{"d", 4, ""}});
}

// With dropout, a second tensor tells which token each row belongs to.
TEST(ExpertParallelTest, ExpertsThatDoNotDivide) {
  MoeLayer layer = OnOneAxis();
  layer.E = 10;
  layer.bias = true;
  layer.dropout = 0.2;
  layer.gating.second_expert = SecondExpertPolicy::kRandom;
  CheckMoeLayer(layer, {{"d", 4, ""}}, /*sent=*/2);
}

TEST(ExpertParallelTest, ExpertsCutAlongTheirWidth) {
  MoeLayer layer = OnOneAxis();
  layer.width = "model";
  layer.H = 11;
  CheckMoeLayer(layer, {{"d", 2, ""}, {"model", 2, ""}});
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  gshard::RegisterMoeOps();
  return gshard::ProcessGroupMain(
      argc, argv, {{gshard::kPartitionedSteps, gshard::RunPartitionedSteps}});
}
