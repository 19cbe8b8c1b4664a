#include "services/model/step_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "services/graph/op.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

const DeviceMesh& Mesh() {
  static const DeviceMesh* const mesh =
      new DeviceMesh(*DeviceMesh::Create({{"router", 2, "router"},
                                          {"expert", 2, "worker"},
                                          {"model", 3, "worker"}}));
  return *mesh;
}

TEST(StepSizesTest, ATokenHasTwoRowsInEachMoeLayer) {
  ModelConfig config = TinyConfig();
  config.gate.group_size = 5;
  const auto program = BuildTrainProgram(config, LossConfig());
  ASSERT_OK(program.status());
  const auto sizes =
      SizesOfStep(*program, Mesh(), {.sentences = 6, .positions = 7});
  ASSERT_OK(sizes.status());
  int gates = 0, plans = 0;
  for (const Node& node : program->nodes) {
    if (node.op->name == "top2_gating") {
      ++gates;  // choice_count [G, E]: 42 tokens in groups of 5
      EXPECT_EQ(*sizes->SizeOf(program->type(node.outputs[7]).shape[0]), 9);
    } else if (node.op->name == "plan_dispatch") {
      ++plans;
      EXPECT_EQ(*sizes->SizeOf(program->type(node.outputs[0]).shape[0]), 84);
    }
  }
  EXPECT_EQ(gates, 2);
  EXPECT_EQ(plans, 2);
  for (const Value& value : program->values) {
    EXPECT_OK(sizes->Bytes(value.type).status());
  }
}

TEST(StepSizesTest, ACacheHasPagesOfPositions) {
  const auto program = BuildDecodeProgram(TinyConfig());
  ASSERT_OK(program.status());
  const auto sizes = SizesOfStep(
      *program, Mesh(), {.sentences = 6, .positions = 20, .hypotheses = 3});
  ASSERT_OK(sizes.status());
  const auto cache =
      std::find_if(program->outputs.begin(), program->outputs.end(),
                   [](const auto& output) { return output.first == "key/0"; });
  ASSERT_NE(cache, program->outputs.end());
  const Shape& shape = program->type(cache->second).shape;
  EXPECT_EQ(*sizes->SizeOf(shape[0]), 6 * (3 + 1) * 2);
  EXPECT_EQ(*sizes->SizeOf(shape[1]), 16);
}

}  // namespace
}  // namespace gshard
