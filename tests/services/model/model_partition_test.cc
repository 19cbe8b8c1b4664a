// Runs the model's programs on a mesh of devices, as annotated, and whole.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "services/config/model_config.h"
#include "services/partition/ops/collective_ops.h"
#include "services/partition/partitioner.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

// Four pairs of sentences of at most four words.
std::vector<SentencePair> Pairs() {
  return {{{1, 4, 9, 2}, {0, 3, 12}},
          {{5, 2}, {0, 7, 7, 2}},
          {{3, 3, 8}, {0, 11}},
          {{6}, {0, 1, 1}}};
}

ModelConfig GroupedConfig() {
  ModelConfig config = TinyConfig();
  config.decoder_layers = 3;
  config.gate.group_size = 4;
  config.gate.training_policy = SecondExpertPolicy::kRandom;
  config.gate.training_capacity_factor = 1.0;
  return config;
}

void CheckProgram(const ModelConfig& config, const Program& program,
                  const TensorMap& inputs, std::vector<MeshAxis> axes) {
  ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                       DeviceMesh::Create(std::move(axes)));
  const TensorMap parameters = TinyParameters(config, 7);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> whole,
                       Executor(program).Run(inputs, parameters));
  ASSERT_OK_AND_ASSIGN(const Partitioned partitioned, Partition(program, mesh));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> joined,
      RunPartitioned(partitioned, mesh, inputs, parameters, whole));
  for (size_t i = 0; i < whole.size(); ++i) {
    const std::string& name = program.outputs[i].first;
    if (whole[i].type() == ElementType::kInt32) {
      EXPECT_TRUE(TensorEqual(joined[i], whole[i])) << name;
    } else {
      EXPECT_TRUE(TensorNear(joined[i], whole[i], 1e-5f)) << name;
    }
  }
}

void CheckTraining(const ModelConfig& config, std::vector<MeshAxis> axes) {
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(config, LossConfig()));
  CheckProgram(config, program, TrainInputs(config, Pairs(), 1, 4, 4),
               std::move(axes));
}

// Training, with sentences split along one axis and experts along the other,
// equals that of the whole model.
TEST(ModelPartitionTest, TrainingEqualsTheModelInOnePiece) {
  for (const auto& [routers, workers] :
       std::vector<std::pair<int64_t, int64_t>>{
           {1, 2}, {2, 1}, {2, 2}, {4, 2}, {2, 3}}) {
    SCOPED_TRACE(absl::StrCat(routers, " routers, ", workers, " workers"));
    ModelConfig config = GroupedConfig();
    config.expert_bias = workers == 3;
    CheckTraining(config, {{"router", routers, ""}, {"expert", workers, ""}});
  }
}

TEST(ModelPartitionTest, WithDropout) {
  ModelConfig config = GroupedConfig();
  config.dropout = {
      .input = 0.1, .residual = 0.1, .attention = 0.1, .ffn = 0.1, .moe = 0.1};
  CheckTraining(config, {{"router", 2, ""}, {"expert", 2, ""}});
}

TEST(ModelPartitionTest, Encoder) {
  const ModelConfig config = GroupedConfig();
  ASSERT_OK_AND_ASSIGN(const Program program, BuildEncodeProgram(config));
  TensorMap inputs;
  AddSentences("source", {{1, 4, 9, 2}, {5, 2}, {3, 3, 8}, {6}}, 4, inputs);
  inputs["key"] = KeyInput(0);
  CheckProgram(config, program, inputs, {{"router", 2, ""}, {"expert", 2, ""}});
}

// One step, of two hypotheses for each of four sentences, equals the whole's.
TEST(ModelPartitionTest, Decoder) {
  const ModelConfig config = GroupedConfig();
  ASSERT_OK_AND_ASSIGN(const Program program, BuildDecodeProgram(config));
  // Row r has page r, its sentence page 8 + r / 2.
  const int64_t R = 8, S = 12, P = 4;
  TensorMap inputs = {
      {"tokens", Tensor::Ints({R, 1}, {1, 2, 3, 4, 5, 6, 7, 8})},
      {"positions", Tensor::Ints({R, 1}, {1, 1, 2, 0, 1, 2, 0, 1})},
      {"valid", Tensor::Ints({R, 1}, {1, 1, 1, 0, 1, 1, 1, 0})},
      {"slots", Tensor::Ints({R}, {1, 5, 10, 12, 17, 22, 24, 29})},
      {"lengths", Tensor::Ints({R}, {2, 2, 3, 1, 2, 3, 1, 2})},
      {"pages", Tensor::Ints({R, 1}, {0, 1, 2, 3, 4, 5, 6, 7})},
      {"source_lengths", Tensor::Ints({R}, {4, 4, 2, 2, 3, 3, 1, 1})},
      {"source_pages", Tensor::Ints({R, 1}, {8, 8, 9, 9, 10, 10, 11, 11})},
      {"key", KeyInput(0)}};
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    for (const char* name : {"key/", "value/"}) {
      inputs[absl::StrCat(name, i)] =
          RandomTensor({S, P, config.heads, config.head_width},
                       name[0] == 'k' ? 10 + i : 20 + i);
    }
  }
  CheckProgram(config, program, inputs, {{"router", 2, ""}, {"expert", 2, ""}});
}

struct Counts {
  std::map<std::string, int> nodes;
  int router_nodes = 0, worker_nodes = 0;
  bool operator==(const Counts& other) const = default;
};

absl::StatusOr<Counts> CountNodes(const Program& program, int64_t routers,
                                  int64_t workers) {
  ASSIGN_OR_RETURN(const DeviceMesh mesh,
                   DeviceMesh::Create({{"router", routers, "router"},
                                       {"expert", workers, "worker"}}));
  ASSIGN_OR_RETURN(const Partitioned partitioned, Partition(program, mesh));
  Counts counts;
  for (const Node& node : partitioned.program.nodes) {
    ++counts.nodes[node.op->name];
    ++(partitioned.roles[node.outputs[0]] == 0 ? counts.router_nodes
                                               : counts.worker_nodes);
    if (IsCollective(node.op->name)) {
      EXPECT_EQ(partitioned.roles[node.outputs[0]], 0)
          << "workers talk: " << node.op->name;
    }
  }
  for (const auto& [name, placed] : partitioned.parameters) {
    const bool split = !placed.sharding.IsReplicated();
    EXPECT_EQ(placed.role == 1, split) << name;
  }
  return counts;
}

// Routers split the sentences and keep the dense weights, workers keep the
// experts: two crossings per MoE layer forward and two backward.
TEST(ModelPartitionTest, RoutersAndWorkers) {
  ASSERT_OK_AND_ASSIGN(
      ModelConfig config,
      LoadModelConfig("deploy/config/gshard_2048e_36l.textproto"));
  // Without groups, the tokens of all routers form one group and are gathered.
  config.gate.group_size = 1024;
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(config, LossConfig()));
  ASSERT_OK_AND_ASSIGN(const Counts few, CountNodes(program, 2, 2));
  ASSERT_OK_AND_ASSIGN(const Counts many, CountNodes(program, 2048, 2048));
  EXPECT_EQ(few, many);
  int layers = 0;
  for (int64_t i = 0; i < config.encoder_layers; ++i) {
    layers += config.IsMoeLayer(i);
  }
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    layers += config.IsMoeLayer(i);
  }
  EXPECT_EQ(many.nodes.at("send_rows"), 2 * layers);
  EXPECT_EQ(many.nodes.at("return_rows"), 2 * layers);
  EXPECT_FALSE(many.nodes.contains("send_whole"));
  // Routers sum gradients, losses and counts, and share no activations.
  for (const auto& [name, count] : many.nodes) {
    EXPECT_TRUE(!IsCollective(name) || name == "all_reduce") << name;
  }
  int dense = 0;
  for (const ParameterSpec& spec : ModelParameters(config)) {
    dense += !spec.per_expert;
  }
  // Each layer's balance loss and its share, kept and overflow counts, largest
  // logits; the cross entropy and its largest logits.
  EXPECT_EQ(many.nodes.at("all_reduce"), dense + 5 * layers + 2);
}

}  // namespace
}  // namespace gshard
