// Checks on a GPU that the programs of routers and workers run there entirely,
// and give the CPU's results.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "services/cuda/ops/cuda_kernels.h"
#include "services/model/transformer.h"
#include "services/segments/role_split.h"
#include "tests/services/cuda/gpu_test.h"
#include "tests/testing/op_case.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

// A configuration with all optional parts of the programs.
ModelConfig Rich(ComputeType type) {
  ModelConfig config = TinyConfig();
  config.dropout = {
      .input = 0.1, .residual = 0.1, .attention = 0.1, .ffn = 0.1, .moe = 0.1};
  config.gate = GateConfig();
  config.gate.z_loss_coefficient = 0.1;
  config.gate.group_size = 8;
  config.expert_bias = true;
  config.compute_type = type;
  if (type != ComputeType::kInt8) config.wire_type = type;
  return config;
}

std::vector<ModelConfig> Configs() {
  std::vector<ModelConfig> configs = {Rich(ComputeType::kFloat32),
                                      Rich(ComputeType::kBFloat16)};
  ModelConfig plain = TinyConfig();
  plain.positions = Positions::kLearned;
  plain.tie_output = false;
  configs.push_back(plain);
  ModelConfig shared = Rich(ComputeType::kFloat32);
  shared.target_vocabulary_size = shared.source_vocabulary_size;
  shared.shared_vocabulary = true;
  shared.scale_tied_logits = false;
  shared.gate.training_policy = SecondExpertPolicy::kSampling;
  shared.gate.normalize = GateNormalize::kAfterDropping;
  shared.gate.batch_prioritized = true;
  configs.push_back(shared);
  return configs;
}

std::vector<Program> Programs(const ModelConfig& config) {
  return {*BuildTrainProgram(config, {.z_loss = 0.01}),
          *BuildEvaluateProgram(config),
          *BuildEncodeProgram(config, /*routing=*/true),
          *BuildDecodeProgram(config, /*routing=*/true)};
}

// An Executor, which fails if a kernel is missing, accepts all programs.
TEST(RouterProgramsTest, AreWhollyOnTheGpu) {
  RegisterCudaKernels();
  for (const ModelConfig& config : Configs()) {
    for (const Program& program : Programs(config)) {
      SCOPED_TRACE(program.name);
      EXPECT_OK(Executor(program, Backend::kCuda).status());
      ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
      EXPECT_OK(Executor(roles.router, Backend::kCuda).status());
      EXPECT_FALSE(roles.segments.empty());
      for (const Segment& segment : roles.segments) {
        EXPECT_OK(Executor(segment.program, Backend::kCuda).status());
      }
    }
  }
}

// Those that serve with weights of int8, too, which have no training.
TEST(RouterProgramsTest, OfInt8AreWhollyOnTheGpu) {
  RegisterCudaKernels();
  for (ModelConfig config : Configs()) {
    config.compute_type = ComputeType::kInt8;
    for (const Program& program :
         {*BuildEncodeProgram(config), *BuildDecodeProgram(config)}) {
      SCOPED_TRACE(program.name);
      EXPECT_OK(Executor(program, Backend::kCuda).status());
      ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
      EXPECT_OK(Executor(roles.router, Backend::kCuda).status());
      for (const Segment& segment : roles.segments) {
        EXPECT_OK(Executor(segment.program, Backend::kCuda).status());
      }
    }
  }
}

class RouterRunTest : public GpuTest,
                      public ::testing::WithParamInterface<ComputeType> {
 protected:
  // Outputs by name, from the device, or from the host with kCpu.
  TensorMap Run(const Program& program, Backend backend,
                const TensorMap& inputs, const TensorMap& parameters) {
    TensorMap feeds = inputs;
    for (const auto& [name, tensor] : parameters) feeds[name] = tensor;
    Device* const device = backend == Backend::kCuda ? device_.get() : nullptr;
    auto outputs = RunOn(program, backend, device, feeds);
    EXPECT_OK(outputs.status());
    return outputs.ok() ? NamedOutputs(program, *outputs) : TensorMap();
  }
};

INSTANTIATE_TEST_SUITE_P(Types, RouterRunTest,
                         ::testing::Values(ComputeType::kFloat32,
                                           ComputeType::kBFloat16));

// What serves has weights of int8, too.
using RouterServingTest = RouterRunTest;

INSTANTIATE_TEST_SUITE_P(Types, RouterServingTest,
                         ::testing::Values(ComputeType::kFloat32,
                                           ComputeType::kBFloat16,
                                           ComputeType::kInt8));

float ServingTolerance(ComputeType type) {
  return type == ComputeType::kFloat32 ? 1e-5f : 1e-2f;
}

// Loss, gradients and gate outputs match the CPU's, and have the same bits in
// every run.
TEST_P(RouterRunTest, TrainsAsTheCpu) {
  const ModelConfig config = Rich(GetParam());
  const Program program = *BuildTrainProgram(config, {.z_loss = 0.01});
  const TensorMap inputs = TrainInputs(config, TinyPairs());
  const TensorMap parameters = TinyParameters(config, 3);
  const TensorMap expected = Run(program, Backend::kCpu, inputs, parameters);
  const TensorMap got = Run(program, Backend::kCuda, inputs, parameters);
  ASSERT_EQ(got.size(), expected.size());
  const float tolerance = GetParam() == ComputeType::kBFloat16 ? 1e-2f : 1e-5f;
  for (const auto& [name, tensor] : got) {
    EXPECT_TRUE(tensor.type() == ElementType::kFloat32
                    ? TensorNear(tensor, expected.at(name), tolerance)
                    : TensorEqual(tensor, expected.at(name)))
        << name;
  }
  for (const auto& [name, tensor] :
       Run(program, Backend::kCuda, inputs, parameters)) {
    EXPECT_TRUE(TensorEqual(tensor, got.at(name))) << name;
  }
}

// A sentence has the same bits alone as with padding, among others, and in
// tiles of another size.
TEST_P(RouterServingTest, EncodesASentenceAsAlone) {
  const ModelConfig config = Rich(GetParam());
  const Program program = *BuildEncodeProgram(config);
  const TensorMap parameters = TinyParameters(config, 3);
  const Sentence sentence = {1, 4, 9, 2};
  std::vector<Sentence> many = {{5, 2}, sentence, {3, 3, 8, 1, 1, 2}};
  for (int i = 0; i < 6; ++i) many.push_back({7, i, 4, 2, i});
  const auto encode = [&](const std::vector<Sentence>& sentences,
                          Backend backend) {
    TensorMap inputs;
    AddSentences("source", sentences, 0, inputs);
    inputs["key"] = KeyInput(0);
    return Run(program, backend, inputs, parameters);
  };
  const TensorMap on_cpu = encode({sentence}, Backend::kCpu);
  const TensorMap alone = encode({sentence}, Backend::kCuda);
  const TensorMap among = encode(many, Backend::kCuda);
  const float tolerance = ServingTolerance(GetParam());
  for (const char* name : {"cross_key/0", "cross_value/1"}) {
    EXPECT_TRUE(TensorNear(alone.at(name), on_cpu.at(name), tolerance));
    const Tensor row = among.at(name).Rows(1, 2);
    EXPECT_EQ(
        std::memcmp(row.raw(), alone.at(name).raw(), alone.at(name).bytes()), 0)
        << name;
  }
}

// Inputs of the decoder for R hypotheses with paged keys and values.
TensorMap DecodeInputs(const ModelConfig& config, int64_t R) {
  const int64_t pages = 3 * R, P = 4;
  TensorMap inputs = {{"key", KeyInput(0)}};
  std::vector<int32_t> tokens, positions, slots, lengths, table, source;
  for (int32_t r = 0; r < R; ++r) {
    const int32_t position = (r * 3 + 2) % (2 * P);
    tokens.push_back(r % 7);
    positions.push_back(position);
    lengths.push_back(position + 1);
    table.insert(table.end(), {3 * r, 3 * r + 1});
    source.push_back(3 * r + 2);
    slots.push_back((3 * r + position / P) * P + position % P);
  }
  inputs["tokens"] = Tensor::Ints({R, 1}, tokens);
  inputs["positions"] = Tensor::Ints({R, 1}, positions);
  inputs["valid"] = Tensor::Ints({R, 1}, std::vector<int32_t>(R, 1));
  inputs["slots"] = Tensor::Ints({R}, slots);
  inputs["lengths"] = Tensor::Ints({R}, lengths);
  inputs["pages"] = Tensor::Ints({R, 2}, table);
  inputs["source_lengths"] = Tensor::Ints({R}, std::vector<int32_t>(R, 3));
  inputs["source_pages"] = Tensor::Ints({R, 1}, source);
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    for (const std::string cache : {"key/", "value/"}) {
      inputs[cache + std::to_string(i)] = RandomTensor(
          {pages, P, config.heads, config.head_width}, FoldIn(i, cache));
    }
  }
  return inputs;
}

TEST_P(RouterServingTest, DecodesARowAsAlone) {
  const ModelConfig config = Rich(GetParam());
  const Program program = *BuildDecodeProgram(config);
  const TensorMap parameters = TinyParameters(config, 3);
  const TensorMap one = DecodeInputs(config, 1);
  const TensorMap many = DecodeInputs(config, 40);
  const TensorMap on_cpu = Run(program, Backend::kCpu, one, parameters);
  const TensorMap alone = Run(program, Backend::kCuda, one, parameters);
  const TensorMap among = Run(program, Backend::kCuda, many, parameters);
  const float tolerance = ServingTolerance(GetParam());
  for (const char* name : {"logits", "key/0", "value/1"}) {
    EXPECT_TRUE(TensorNear(alone.at(name), on_cpu.at(name), tolerance)) << name;
  }
  EXPECT_EQ(std::memcmp(among.at("logits").raw(), alone.at("logits").raw(),
                        alone.at("logits").bytes()),
            0);
}

}  // namespace
}  // namespace gshard
