// Compares the split program with the whole one, bit for bit.

#include <numeric>

#include "services/graph/gradient.h"
#include "services/moe/graph_ops.h"
#include "services/sharding/annotation.h"
#include "tests/services/segments/split_model.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// Contiguous and even, uneven, scattered, and workers without experts.
std::vector<ExpertsOfWorkers> Placements() {
  return {{{0, 1, 2, 3}},
          {{0, 1}, {2, 3}},
          {{0}, {1, 2, 3}},
          {{1, 3}, {0, 2}},
          {{2}, {0, 3}, {1}},
          {{0}, {1}, {2}, {3}},
          {{}, {0, 1, 2, 3}, {}, {}}};
}

TEST(LocalSegmentsTest, TrainingGivesTheBitsOfOneProcess) {
  for (const bool bias : {false, true}) {
    ModelConfig config = TinyConfig();
    config.decoder_layers = 3;
    config.expert_bias = bias;
    config.dropout.residual = 0.1;
    config.dropout.moe = bias ? 0.2 : 0.0;
    config.gate.training_policy = SecondExpertPolicy::kRandom;
    config.gate.training_capacity_factor = 1.0;
    ASSERT_OK_AND_ASSIGN(const Program program,
                         BuildTrainProgram(config, LossConfig()));
    ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
    const TensorMap parameters = TinyParameters(config, 7);
    const TensorMap inputs = TrainInputs(config, TinyPairs());
    ASSERT_OK_AND_ASSIGN(const TensorMap whole,
                         RunWhole(program, parameters, inputs));
    for (const ExpertsOfWorkers& workers : Placements()) {
      SCOPED_TRACE(absl::StrCat(workers.size(), " workers, bias ", bias));
      ASSERT_OK_AND_ASSIGN(const TensorMap split,
                           RunSplit(roles, workers, parameters, inputs));
      ExpectSameOutputs(whole, split);
    }
  }
}

// bfloat16 is rounded at the same places wherever segments run, so split
// programs give the bits of one process.
TEST(LocalSegmentsTest, BFloat16GivesTheBitsOfOneProcess) {
  using enum ComputeType;
  for (const auto& [compute, wire] :
       std::vector<std::pair<ComputeType, ComputeType>>{
           {kBFloat16, kFloat32},
           {kFloat32, kBFloat16},
           {kBFloat16, kBFloat16}}) {
    ModelConfig config = TinyConfig();
    config.compute_type = compute;
    config.wire_type = wire;
    config.expert_bias = true;
    config.dropout.residual = 0.1;
    config.dropout.ffn = 0.1;
    config.dropout.moe = 0.2;
    ASSERT_OK_AND_ASSIGN(const Program program,
                         BuildTrainProgram(config, LossConfig()));
    ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
    const TensorMap parameters = TinyParameters(config, 7);
    const TensorMap inputs = TrainInputs(config, TinyPairs());
    ASSERT_OK_AND_ASSIGN(const TensorMap whole,
                         RunWhole(program, parameters, inputs));
    for (const ExpertsOfWorkers& workers : Placements()) {
      SCOPED_TRACE(absl::StrCat(workers.size(), " workers, compute ",
                                static_cast<int>(compute), ", wire ",
                                static_cast<int>(wire)));
      ASSERT_OK_AND_ASSIGN(const TensorMap split,
                           RunSplit(roles, workers, parameters, inputs));
      ExpectSameOutputs(whole, split);
    }
  }
}

// Rows cross in the wire type in both directions, forward and backward.
TEST(LocalSegmentsTest, RowsCrossInTheTypeOfTheWire) {
  using enum ComputeType;
  for (const ComputeType compute : {kFloat32, kBFloat16}) {
    for (const ComputeType wire : {kFloat32, kBFloat16}) {
      ModelConfig config = TinyConfig();
      config.compute_type = compute;
      config.wire_type = wire;
      ASSERT_OK_AND_ASSIGN(const Program program,
                           BuildTrainProgram(config, LossConfig()));
      ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
      const auto expected =
          wire == kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat32;
      int crossings = 0;
      for (const Node* node : roles.router.NodesOf("call_segment")) {
        const SegmentCall call = GetSegmentCall(*node);
        for (size_t i = 0; i < node->inputs.size(); ++i) {
          if (!call.sent[i] || call.division[i] != Division::kRows) continue;
          EXPECT_EQ(roles.router.type(node->inputs[i]).type, expected);
          ++crossings;
        }
        for (const ValueId reply : node->outputs) {
          EXPECT_EQ(roles.router.type(reply).type, expected);
          ++crossings;
        }
      }
      // Two layers, both directions, forward and backward.
      EXPECT_EQ(crossings, 8);
    }
  }
}

// For one sentence of one token most experts get no rows: workers without rows
// are skipped, and the outputs stay the same.
TEST(LocalSegmentsTest, ServingSkipsIdleWorkers) {
  const ModelConfig config = TinyConfig();
  ASSERT_OK_AND_ASSIGN(const Program program, BuildEncodeProgram(config));
  ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
  const TensorMap parameters = TinyParameters(config, 7);
  TensorMap inputs;
  AddSentences("source", {{3}}, 0, inputs);
  inputs["key"] = KeyInput(0);
  ASSERT_OK_AND_ASSIGN(const TensorMap whole,
                       RunWhole(program, parameters, inputs));
  for (const ExpertsOfWorkers& workers : Placements()) {
    LocalSegments segments(roles.segments, workers,
                           ShareParameters(roles, workers, parameters));
    ASSERT_OK_AND_ASSIGN(
        const std::vector<Tensor> outputs,
        Executor(roles.router)
            .Run(inputs, parameters,
                 {.context = RunContext().With<SegmentRunner>(&segments)}));
    ExpectSameOutputs(whole, NamedOutputs(roles.router, outputs));
  }
}

// A batch of padding only dispatches no rows and gives the bits of one process.
TEST(LocalSegmentsTest, NoRowsAtAll) {
  const ModelConfig config = TinyConfig();
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(config, LossConfig()));
  ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
  const TensorMap parameters = TinyParameters(config, 7);
  const TensorMap inputs = TrainInputs(config, {{{}, {}}}, 1, 2, 2);
  ASSERT_OK_AND_ASSIGN(const TensorMap whole,
                       RunWhole(program, parameters, inputs));
  ASSERT_OK_AND_ASSIGN(const TensorMap split,
                       RunSplit(roles, {{0, 1}, {2, 3}}, parameters, inputs));
  ExpectSameOutputs(whole, split);
}

// One MoE layer [T, M] with E experts of width H and its gradients.
absl::StatusOr<Program> LayerProgram(int64_t M, int64_t H, int64_t E) {
  RegisterMoeOps();
  const Dim T = Dim::Symbol("T");
  Builder b("layer");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {T, M}});
  const ValueId valid = b.Input("valid", {ElementType::kInt32, {T}});
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  const ValueId gate_weights = b.Parameter("gate", {M, E});
  GatingOptions options;
  const GateValues gate = GateTokens(b, b.Einsum("tm,me->te", x, gate_weights),
                                     valid, key, options, 0);
  const DispatchValues dispatched = DispatchTokens(b, x, gate, E, options);
  const ValueId wi = Split(b, b.Parameter("wi", {E, M, H}), 0, "expert");
  const ValueId wo = Split(b, b.Parameter("wo", {E, H, M}), 0, "expert");
  const ValueId sizes = dispatched.group_sizes;
  const ValueId h = b.Relu(b.RaggedDot(dispatched.rows, wi, sizes));
  const ValueId y = CombineRows(b, b.RaggedDot(h, wo, sizes),
                                dispatched.row_source, gate.weight);
  const ValueId loss =
      b.Add(b.ReduceSum(b.Multiply(y, y), {0, 1}), gate.balance_loss);
  auto gradients = AddGradients(b, loss, {x, gate_weights, wi, wo});
  if (!gradients.ok()) return gradients.status();
  b.Output("y", y);
  b.Output("kept", gate.kept_count);
  b.Output("gradient_of_x", (*gradients)[0]);
  b.Output("gradient/gate", (*gradients)[1]);
  b.Output("gradient/wi", (*gradients)[2]);
  b.Output("gradient/wo", (*gradients)[3]);
  return std::move(b).Finish();
}

TEST(LocalSegmentsTest, TwoThousandExpertsOnFourWorkers) {
  const int64_t M = 8, H = 4, E = 2048, T = 3000;
  ASSERT_OK_AND_ASSIGN(const Program program, LayerProgram(M, H, E));
  ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
  EXPECT_EQ(roles.segments.size(), 2);
  TensorMap parameters;
  parameters["gate"] = RandomTensor({M, E}, 1);
  parameters["wi"] = RandomTensor({E, M, H}, 2);
  parameters["wo"] = RandomTensor({E, H, M}, 3);
  TensorMap inputs;
  inputs["x"] = RandomTensor({T, M}, 4);
  Tensor valid(ElementType::kInt32, {T});
  std::fill_n(valid.i32(), T, 1);
  inputs["valid"] = valid;
  inputs["key"] = KeyInput(5);
  ASSERT_OK_AND_ASSIGN(const TensorMap whole,
                       RunWhole(program, parameters, inputs));
  ExpertsOfWorkers contiguous(4), scattered(4);
  for (int32_t e = 0; e < E; ++e) {
    contiguous[e / (E / 4)].push_back(e);
    scattered[RandomBelow(6, e, 4)].push_back(e);
  }
  for (const ExpertsOfWorkers& workers : {contiguous, scattered}) {
    ASSERT_OK_AND_ASSIGN(const TensorMap split,
                         RunSplit(roles, workers, parameters, inputs));
    ExpectSameOutputs(whole, split);
  }
}

TEST(CallSegmentTest, NeedsSomebodyToCall) {
  ASSERT_OK_AND_ASSIGN(const Program program, BuildEncodeProgram(TinyConfig()));
  ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
  TensorMap inputs;
  AddSentences("source", {{3}}, 0, inputs);
  inputs["key"] = KeyInput(0);
  EXPECT_THAT(
      Executor(roles.router).Run(inputs, TinyParameters(TinyConfig(), 7)),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("there is nobody to call segments of")));
}

}  // namespace
}  // namespace gshard
