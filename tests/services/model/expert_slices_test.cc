#include "services/model/expert_slices.h"

#include <gtest/gtest.h>

#include "services/partition/partitioner.h"
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

TEST(ExpertSlicesTest, CutTheHiddenWidthOfExpertsAlone) {
  ModelConfig config = TinyConfig();
  config.expert_bias = true;
  auto program = BuildTrainProgram(config, LossConfig());
  ASSERT_OK(program.status());
  SliceExperts(*program, "model");
  SliceExperts(*program, "model");
  const auto partitioned = Partition(*program, Mesh());
  ASSERT_OK(partitioned.status());
  const auto lies = [&](const char* parameter) {
    return partitioned->parameters.at(parameter).sharding.ToString(Mesh());
  };
  EXPECT_EQ(lies("encoder.0.moe.wi"), "[expert, -, model]");
  EXPECT_EQ(lies("encoder.0.moe.bi"), "[expert, model]");
  EXPECT_EQ(lies("decoder.0.moe.wo"), "[expert, model, -]");
  EXPECT_EQ(lies("decoder.0.moe.bo"), "[expert, -]");
  EXPECT_EQ(lies("encoder.1.ffn.wi"), "[-, -]");
  for (const auto& [name, placed] : partitioned->outputs) {
    if (name == "gradient/encoder.0.moe.wi") {
      EXPECT_EQ(placed.sharding.ToString(Mesh()), "[expert, -, model]");
    }
  }
}

}  // namespace
}  // namespace gshard
