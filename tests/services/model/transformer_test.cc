#include "services/model/transformer.h"

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/graph/text.h"
#include "services/train/plan.h"
#include "tests/reference/kernels.h"
#include "tests/testing/find_output.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

using ::testing::Contains;

TensorMap RunTraining(const ModelConfig& config, const TensorMap& parameters,
                      TensorMap inputs, Backend backend = Backend::kCpu) {
  auto program = BuildTrainProgram(config, LossConfig());
  CHECK(program.ok());
  const Executor executor(*std::move(program), backend);
  auto outputs = executor.Run(std::move(inputs), parameters);
  CHECK(outputs.ok());
  return NamedOutputs(executor.program(), *outputs);
}

// The objective that BuildTrainProgram differentiates.
double Objective(const ModelConfig& config, const TensorMap& outputs,
                 float target_tokens) {
  double balance_loss = 0.0;
  for (const std::string& layer : MoeLayerNames(config)) {
    balance_loss += *outputs.at("balance_loss/" + layer).f32();
  }
  return *outputs.at("loss").f32() +
         target_tokens * config.gate.balance_loss_coefficient * balance_loss;
}

TEST(TrainProgramTest, GradientsAgreeWithDifferences) {
  ModelConfig config = TinyConfig();
  config.expert_bias = true;
  config.gate.balance_loss_coefficient = 0.1;
  const TensorMap parameters = TinyParameters(config, 7);
  const TensorMap inputs = TrainInputs(config, TinyPairs());
  const float tokens = *inputs.at("target_tokens").f32();
  const TensorMap outputs = RunTraining(config, parameters, inputs);
  RegisterReferenceKernels();
  const TensorMap slow =
      RunTraining(config, parameters, inputs, Backend::kReference);
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(config, LossConfig()));
  const Executor executor(program);
  const float step = 3e-3f;
  uint64_t draw = 0;
  for (const ParameterSpec& spec : ModelParameters(config)) {
    const Tensor& gradient = outputs.at("gradient/" + spec.name);
    EXPECT_TRUE(TensorNear(gradient, slow.at("gradient/" + spec.name), 2e-5f))
        << spec.name;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const int64_t i = RandomBelow(5, draw++, gradient.size());
      double objective[2];
      for (const int side : {0, 1}) {
        TensorMap moved = parameters;
        moved[spec.name] = moved[spec.name].Clone();
        moved[spec.name].f32()[i] += side == 0 ? -step : step;
        ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                             executor.Run(inputs, moved));
        objective[side] = Objective(config, NamedOutputs(program, y), tokens);
      }
      const double numeric = (objective[1] - objective[0]) / (2 * step);
      EXPECT_NEAR(gradient.f32()[i], numeric, 0.01 + 0.02 * std::fabs(numeric))
          << spec.name << "[" << i << "]";
    }
  }
}

TEST(TrainProgramTest, RandomNumbersAreAFunctionOfTheKey) {
  ModelConfig config = TinyConfig();
  config.dropout = {
      .input = 0.2, .residual = 0.2, .attention = 0.2, .ffn = 0.2, .moe = 0.0};
  config.gate.training_policy = SecondExpertPolicy::kRandom;
  config.gate.training_capacity_factor = 1.0;
  const TensorMap parameters = TinyParameters(config, 7);
  const auto run = [&](int64_t key) {
    return RunTraining(config, parameters,
                       TrainInputs(config, TinyPairs(), key));
  };
  const TensorMap first = run(1), again = run(1), other = run(2);
  for (const auto& [name, value] : first) {
    EXPECT_TRUE(TensorEqual(value, again.at(name))) << name;
  }
  EXPECT_FALSE(TensorEqual(first.at("loss"), other.at("loss")));
  EXPECT_FALSE(TensorEqual(first.at("gradient/encoder.0.moe.wi"),
                           other.at("gradient/encoder.0.moe.wi")));
}

TEST(TrainProgramTest, PaddingChangesNothing) {
  const ModelConfig config = TinyConfig();
  const TensorMap parameters = TinyParameters(config, 7);
  std::vector<SentencePair> pairs = TinyPairs();
  const TensorMap plain =
      RunTraining(config, parameters, TrainInputs(config, pairs));
  pairs.push_back({{}, {}});
  pairs.push_back({{}, {}});
  const TensorMap padded =
      RunTraining(config, parameters, TrainInputs(config, pairs, 1, 7, 9));
  for (const auto& [name, value] : plain) {
    // Padding may split sums over tokens differently, which changes rounding.
    EXPECT_TRUE(value.type() == ElementType::kFloat32
                    ? TensorNear(padded.at(name), value, 2e-5f)
                    : TensorEqual(padded.at(name), value))
        << name;
  }
  EXPECT_TRUE(TensorEqual(plain.at("loss"), padded.at("loss")));
}

TEST(TrainProgramTest, ExpertsLearnOnlyFromTheirTokens) {
  const ModelConfig config = TinyConfig();
  const TensorMap outputs =
      RunTraining(config, TinyParameters(config, 7),
                  TrainInputs(config, {{{1, 4}, {0, 3}}}));
  const Tensor& kept = outputs.at("kept/decoder.0.moe");
  const Tensor& gradient = outputs.at("gradient/decoder.0.moe.wo");
  int64_t rows = 0;
  for (int64_t e = 0; e < config.experts; ++e) {
    rows += kept.i32()[e];
    const Tensor of_expert = gradient.Rows(e, e + 1);
    const bool any =
        std::any_of(of_expert.f32(), of_expert.f32() + of_expert.size(),
                    [](float x) { return x != 0.0f; });
    EXPECT_EQ(any, kept.i32()[e] > 0) << "expert " << e;
  }
  EXPECT_EQ(rows, 4);  // two tokens, two choices
}

// The distance of all gradients in `outputs` from those in `whole`, relative to
// the norm of the latter.
double Distance(const TensorMap& outputs, const TensorMap& whole) {
  double distance = 0.0, length = 0.0;
  for (const auto& [name, expected] : whole) {
    if (!absl::StartsWith(name, "gradient/")) continue;
    for (int64_t i = 0; i < expected.size(); ++i) {
      const double x = outputs.at(name).f32()[i], y = expected.f32()[i];
      distance += (x - y) * (x - y);
      length += y * y;
    }
  }
  return std::sqrt(distance / length);
}

// bfloat16, with a relative error of at most 2^-9, changes the loss by at most
// 0.2% and the gradient by 3%, or by 1% if only the wire rounds.
TEST(TrainProgramTest, BFloat16StaysNearFloat32) {
  ModelConfig config = TinyConfig();
  config.expert_bias = true;
  const TensorMap parameters = TinyParameters(config, 7);
  const TensorMap inputs = TrainInputs(config, TinyPairs());
  const TensorMap whole = RunTraining(config, parameters, inputs);
  const float loss = *whole.at("loss").f32();
  for (const bool compute : {false, true}) {
    for (const bool wire : {false, true}) {
      if (!compute && !wire) continue;
      SCOPED_TRACE(absl::StrCat("compute ", compute, ", wire ", wire));
      ModelConfig low = config;
      if (compute) low.compute_type = ComputeType::kBFloat16;
      if (wire) low.wire_type = ComputeType::kBFloat16;
      const TensorMap outputs = RunTraining(low, parameters, inputs);
      EXPECT_NEAR(*outputs.at("loss").f32(), loss, 2e-3 * loss);
      EXPECT_LT(Distance(outputs, whole), compute ? 0.03 : 0.01);
      EXPECT_GT(Distance(outputs, whole), 1e-4);  // it does round
      const TensorMap slow =
          RunTraining(low, parameters, inputs, Backend::kReference);
      EXPECT_LT(Distance(outputs, slow), 1e-3);
      for (const auto& [name, value] : whole) {
        EXPECT_EQ(outputs.at(name).TypeString(), value.TypeString()) << name;
      }
    }
  }
}

// Only factors of products and rows on the wire are rounded; the gate, norms,
// softmax and losses are not.
TEST(TrainProgramTest, OnlyProductsAndTheWireAreOfBFloat16) {
  ModelConfig config = TinyConfig();
  config.compute_type = config.wire_type = ComputeType::kBFloat16;
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(config, LossConfig()));
  std::set<std::string> readers;
  for (const Node& node : program.nodes) {
    for (const ValueId input : node.inputs) {
      if (program.type(input).type == ElementType::kBFloat16) {
        readers.insert(node.op->name);
      }
    }
  }
  EXPECT_THAT(readers,
              ::testing::ElementsAre("cast", "combine", "combine_gradient",
                                     "dispatch_gradient", "einsum", "embedding",
                                     "ragged_dot", "ragged_dot_rows_gradient",
                                     "ragged_dot_weights_gradient", "relu",
                                     "relu_gradient"));
  for (const Node* node : program.NodesOf("einsum")) {
    const bool gate =
        absl::StrContains(StringAttribute(node->attributes, "equation"), "e");
    EXPECT_EQ(program.type(node->inputs[0]).type,
              gate ? ElementType::kFloat32 : ElementType::kBFloat16);
  }
}

TEST(TrainProgramTest, Int8IsForServing) {
  ModelConfig config = TinyConfig();
  config.compute_type = ComputeType::kInt8;
  EXPECT_THAT(BuildTrainProgram(config, LossConfig()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("to train, got INT8")));
  // Only the weights of products are int8; those of the gate are not.
  ASSERT_OK_AND_ASSIGN(const Program program, BuildEncodeProgram(config));
  std::set<std::string> readers;
  for (const Node& node : program.nodes) {
    for (const ValueId input : node.inputs) {
      if (program.type(input).type != ElementType::kInt8) continue;
      readers.insert(node.op->name);
      EXPECT_EQ(program.producer(input).op->name, "parameter");
    }
  }
  EXPECT_THAT(readers, ::testing::ElementsAre("einsum", "ragged_dot"));
  for (const Node* node : program.NodesOf("parameter")) {
    if (absl::StrContains(StringAttribute(node->attributes, "name"), "gate")) {
      EXPECT_EQ(program.type(node->outputs[0]).type, ElementType::kFloat32);
    }
  }
}

// Each z-loss changes the gradient of the weights that give its logits.
TEST(TrainProgramTest, ZLossesAct) {
  const ModelConfig config = TinyConfig();
  const TensorMap parameters = TinyParameters(config, 7);
  const TensorMap inputs = TrainInputs(config, TinyPairs());
  const auto run = [&](double gate, double vocabulary) {
    ModelConfig with = config;
    with.gate.z_loss_coefficient = gate;
    auto program = BuildTrainProgram(with, {.z_loss = vocabulary});
    CHECK(program.ok());
    auto outputs = Executor(*program).Run(inputs, parameters);
    CHECK(outputs.ok());
    return NamedOutputs(*program, *outputs);
  };
  const TensorMap without = run(0, 0);
  const TensorMap of_gate = run(1, 0), of_words = run(0, 1);
  const std::string gate = "gradient/encoder.0.moe.gate";
  EXPECT_FALSE(TensorNear(of_gate.at(gate), without.at(gate), 1e-3f));
  EXPECT_TRUE(TensorEqual(of_gate.at("loss"), without.at("loss")));
  const std::string words = "gradient/target_embedding";
  EXPECT_FALSE(TensorNear(of_words.at(words), without.at(words), 1e-3f));
  EXPECT_GT(*of_words.at("loss").f32(), *without.at("loss").f32());
  // The program reports what the z-losses act on.
  EXPECT_GT(*without.at("log_sum_square").f32(), 1.0f);
  EXPECT_GT(*without.at("gate_log_sum_square/encoder.0.moe").f32(), 0.5f);
}

using Shapes = std::map<std::string, std::string>;

// Parameters of the program, "name" -> "[4, 8]".
Shapes ParametersOf(const Program& program) {
  Shapes shapes;
  for (const Node* node : program.NodesOf("parameter")) {
    shapes[StringAttribute(node->attributes, "name")] =
        ShapeToString(ShapeAttribute(node->attributes, "shape"));
  }
  return shapes;
}

Shapes ParametersOf(const ModelConfig& config) {
  Shapes shapes;
  for (const ParameterSpec& spec : ModelParameters(config)) {
    EXPECT_EQ(spec.per_expert, absl::StrContains(spec.name, ".moe.") &&
                                   !absl::EndsWith(spec.name, ".gate") &&
                                   !absl::EndsWith(spec.name, ".norm"))
        << spec.name;
    shapes[spec.name] = DimsToString(spec.dims);
  }
  return shapes;
}

struct Variant {
  int64_t encoder_layers, decoder_layers, moe_period, moe_offset, experts;
  bool shared, tied, scaled, learned, bias;
};

class VariantTest : public ::testing::TestWithParam<Variant> {
 protected:
  static ModelConfig Config() {
    const Variant& v = GetParam();
    ModelConfig config = TinyConfig();
    config.encoder_layers = v.encoder_layers;
    config.decoder_layers = v.decoder_layers;
    config.moe_period = v.moe_period;
    config.moe_offset = v.moe_offset;
    config.experts = v.experts;
    config.shared_vocabulary = v.shared;
    if (v.shared) config.source_vocabulary_size = 13;
    config.tie_output = v.tied;
    config.scale_tied_logits = v.scaled;
    config.positions = v.learned ? Positions::kLearned : Positions::kSinusoidal;
    config.expert_bias = v.bias;
    return config;
  }
};

TEST_P(VariantTest, ParametersAreThoseOfTheProgramAndThePlan) {
  const ModelConfig config = Config();
  ASSERT_OK(ValidateModelConfig(config));
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(config, LossConfig()));
  EXPECT_EQ(ParametersOf(program), ParametersOf(config));
  int64_t total = 0;
  for (const ParameterSpec& spec : ModelParameters(config)) {
    total += NumElements(spec.dims);
    const ValueId gradient = FindOutput(program, "gradient/" + spec.name);
    ASSERT_NE(gradient, kNoValue) << spec.name;
    EXPECT_EQ(ShapeToString(program.type(gradient).shape),
              DimsToString(spec.dims));
  }
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(config, {}));
  EXPECT_EQ(plan.parameters.Total(), total);
}

TEST_P(VariantTest, ServingReadsASubsetOfTheParameters) {
  const ModelConfig config = Config();
  const Shapes all = ParametersOf(config);
  for (const auto& program :
       {BuildEncodeProgram(config), BuildDecodeProgram(config)}) {
    ASSERT_OK(program);
    for (const auto& parameter : ParametersOf(*program)) {
      EXPECT_THAT(all, Contains(parameter));
    }
  }
}

TEST_P(VariantTest, TrainsAndReportsEachMoeLayer) {
  const ModelConfig config = Config();
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(config, LossConfig()));
  const TensorMap outputs = RunTraining(config, TinyParameters(config, 3),
                                        TrainInputs(config, TinyPairs()));
  for (const auto& [name, value] : outputs) {
    if (value.type() != ElementType::kFloat32) continue;
    for (const float x : value.span<float>()) {
      ASSERT_TRUE(std::isfinite(x)) << name;
    }
  }
  EXPECT_GT(*outputs.at("loss").f32(), 0.0f);
  for (const std::string& layer : MoeLayerNames(config)) {
    ASSERT_TRUE(outputs.contains("kept/" + layer)) << layer;
    ASSERT_TRUE(outputs.contains("overflow/" + layer)) << layer;
    // 1 if balanced, and the number of experts if one expert gets all tokens.
    EXPECT_GT(*outputs.at("balance_loss/" + layer).f32(), 0.5f);
    EXPECT_LE(*outputs.at("balance_loss/" + layer).f32(),
              static_cast<float>(config.experts));
  }
  const int64_t layers = MoeLayerNames(config).size();
  EXPECT_EQ(layers, config.NumMoeLayers(config.encoder_layers) +
                        config.NumMoeLayers(config.decoder_layers));
  EXPECT_EQ(program.NodesOf("top2_gating").size(), layers);
}

TEST_P(VariantTest, TextGivesTheProgramBack) {
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(Config(), LossConfig()));
  const std::string text = ProgramToText(program);
  ASSERT_OK_AND_ASSIGN(const Program parsed, ParseProgram(text));
  EXPECT_EQ(ProgramToText(parsed), text);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, VariantTest,
    ::testing::Values(
        // layers, MoE period and offset, experts; shared, tied, scaled,
        // learned, bias
        Variant{2, 2, 2, 0, 4, false, true, true, false, false},
        Variant{3, 1, 2, 1, 4, true, true, false, true, true},
        Variant{1, 2, 1, 0, 3, false, false, true, true, false},
        Variant{4, 3, 3, 2, 2, true, false, true, false, true},
        Variant{2, 3, 3, 0, 2, false, true, false, false, true},
        Variant{1, 1, 2, 0, 0, false, false, false, false, false}));

}  // namespace
}  // namespace gshard
