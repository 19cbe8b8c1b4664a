#include "services/train/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/model/transformer.h"
#include "services/ops/int8_panel.h"
#include "services/train/plan_report.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A model small enough to count by hand.
ModelConfig TinyModel() {
  ModelConfig model;
  model.name = "tiny";
  model.encoder_layers = 2;  // layer 0 MoE, layer 1 dense
  model.decoder_layers = 3;  // layers 0 and 2 MoE, layer 1 dense
  model.model_width = 4;
  model.ffn_width = 10;
  model.expert_width = 6;
  model.heads = 2;
  model.head_width = 3;
  model.experts = 5;
  model.source_vocabulary_size = 11;
  model.target_vocabulary_size = 7;
  return model;
}

struct PaperModel {
  const char* name;
  int64_t experts;
  int64_t attention;
  int64_t dense_ffn;
  int64_t gates;
  int64_t total;
  double active_billions;
  int64_t total_experts;
};

class PaperModelTest : public ::testing::TestWithParam<PaperModel> {};

// The paper's configurations, counted from the shapes that it states: an
// attention block has 4 * 1024 * 2048 weights, an FFN or expert 2 * 1024 *
// 8192, a gate 1024 * E, the embeddings (64000 + 32000) * 1024.
TEST_P(PaperModelTest, HasExactlyThePapersParameters) {
  const PaperModel& expected = GetParam();
  ASSERT_OK_AND_ASSIGN(const ModelConfig model,
                       LoadModelConfig(absl::StrCat(
                           "deploy/config/", expected.name, ".textproto")));
  EXPECT_EQ(model.name, expected.name);
  ASSERT_OK_AND_ASSIGN(
      const Plan plan,
      MakePlan(model,
               {.routers = 8, .workers = static_cast<int64_t>(model.experts)}));

  EXPECT_EQ(plan.parameters.experts, expected.experts);
  EXPECT_EQ(plan.parameters.attention, expected.attention);
  EXPECT_EQ(plan.parameters.dense_ffn, expected.dense_ffn);
  EXPECT_EQ(plan.parameters.gates, expected.gates);
  EXPECT_EQ(plan.parameters.embeddings, 98'304'000);
  EXPECT_EQ(plan.parameters.output_projection, 0);
  EXPECT_EQ(plan.parameters.positions, 0);
  EXPECT_EQ(plan.parameters.TotalWithoutNorms(), expected.total);
  EXPECT_EQ(plan.total_experts, expected.total_experts);
  EXPECT_NEAR(plan.active_parameters / 1e9, expected.active_billions, 0.005);

  // Norms: two per encoder layer, three per decoder layer, one per stack.
  const int64_t norms = 2 * model.encoder_layers + 3 * model.decoder_layers + 2;
  EXPECT_EQ(plan.parameters.norm_scales, norms * 1024);
  EXPECT_EQ(plan.parameters.Total(), expected.total + norms * 1024);
}

INSTANTIATE_TEST_SUITE_P(
    Table1, PaperModelTest,
    ::testing::Values(
        PaperModel{"gshard_2048e_36l", 618'475'290'624, 452'984'832,
                   301'989'888, 37'748'736, 619'366'318'080, 1.40, 36864},
        PaperModel{"gshard_2048e_12l", 206'158'430'208, 150'994'944,
                   100'663'296, 12'582'912, 206'520'975'360, 0.47, 12288},
        PaperModel{"gshard_512e_36l", 154'618'822'656, 452'984'832, 301'989'888,
                   9'437'184, 155'481'538'560, 1.37, 9216},
        PaperModel{"gshard_512e_12l", 51'539'607'552, 150'994'944, 100'663'296,
                   3'145'728, 51'892'715'520, 0.46, 3072},
        PaperModel{"gshard_128e_36l", 38'654'705'664, 452'984'832, 301'989'888,
                   2'359'296, 39'510'343'680, 1.36, 2304},
        PaperModel{"gshard_128e_12l", 12'884'901'888, 150'994'944, 100'663'296,
                   786'432, 13'235'650'560, 0.45, 768},
        PaperModel{"gshard_2048e_60l", 1'030'792'151'040, 754'974'720,
                   503'316'480, 62'914'560, 1'032'211'660'800, 2.33, 61440}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(PlanTest, CountsEveryKindOfParameter) {
  ModelConfig model = TinyModel();
  model.tie_output = false;
  model.positions = Positions::kLearned;
  model.max_positions = 9;
  model.expert_bias = true;
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(model, {}));

  EXPECT_EQ(plan.encoder_moe_layers, 1);
  EXPECT_EQ(plan.decoder_moe_layers, 2);
  // Three layers of five experts of 2 * 4 * 6 weights and 6 + 4 biases.
  EXPECT_EQ(plan.parameters.experts, 15 * (48 + 10));
  // Two blocks in the encoder, six in the decoder, of 4 * 4 * 6.
  EXPECT_EQ(plan.parameters.attention, 8 * 96);
  EXPECT_EQ(plan.parameters.dense_ffn, 2 * 80);
  EXPECT_EQ(plan.parameters.gates, 3 * 20);
  EXPECT_EQ(plan.parameters.embeddings, (11 + 7) * 4);
  EXPECT_EQ(plan.parameters.output_projection, 4 * 7);
  EXPECT_EQ(plan.parameters.positions, 2 * 9 * 4);
  EXPECT_EQ(plan.parameters.norm_scales, (4 + 9 + 2) * 4);
  EXPECT_EQ(plan.active_parameters, 768 + 160 + 60 + 3 * 2 * 58);
}

TEST(PlanTest, CountsASharedEmbeddingOnce) {
  ModelConfig model = TinyModel();
  model.target_vocabulary_size = 11;
  model.shared_vocabulary = true;
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(model, {}));
  EXPECT_EQ(plan.parameters.embeddings, 11 * 4);
}

TEST(PlanTest, GivesTheFullestWorkerTheLargerShareOfUnevenExperts) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(TinyModel(), {.workers = 3}));
  EXPECT_EQ(plan.most_experts_per_worker, 2);
  EXPECT_EQ(plan.fewest_experts_per_worker, 1);
  // Two experts of 48 floats in each of three layers.
  EXPECT_EQ(plan.worker_serving.weights, 3 * 2 * 48 * 4);
  EXPECT_EQ(plan.worker_serving.gradients, 0);
  EXPECT_EQ(plan.worker_serving.optimizer_state, 0);
  EXPECT_EQ(plan.worker_training.gradients, 2 * 3 * 2 * 48 * 4);
  EXPECT_EQ(plan.router_serving.weights,
            4 * (plan.parameters.Total() - plan.parameters.experts));
}

// Heads of half the width, twice as many: only the statistics of their softmax
// are more, two numbers per token.
TEST(PlanTest, CountsNoPairsOfPositions) {
  ModelConfig model = TinyModel();
  model.heads = 2;
  model.head_width = 8;
  const PlanOptions options = {.tokens_per_microbatch = 1000};
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(model, options));
  model.heads = 4;
  model.head_width = 4;
  ASSERT_OK_AND_ASSIGN(const Plan more, MakePlan(model, options));
  const int64_t attentions = model.encoder_layers + 2 * model.decoder_layers;
  EXPECT_EQ(more.router_training.activations - plan.router_training.activations,
            1000 * attentions * 2 * 2 * 4);
  EXPECT_EQ(more.router_serving.activations, plan.router_serving.activations);
}

TEST(PlanTest, LeavesWorkersBeyondTheExpertsIdle) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(TinyModel(), {.workers = 8}));
  EXPECT_EQ(plan.most_experts_per_worker, 1);
  EXPECT_EQ(plan.fewest_experts_per_worker, 0);
}

TEST(PlanTest, CountsOptimizerStateOfFactoredAndWholeParameters) {
  PlanOptions options = {.optimizer = AdamConfig()};
  ASSERT_OK_AND_ASSIGN(const Plan adam, MakePlan(TinyModel(), options));
  EXPECT_EQ(adam.worker_training.optimizer_state, 2 * 15 * 48 * 4);

  // Sizes are 4 and 6: at 5 nothing is factored, at 4 each expert matrix
  // keeps a row and a column.
  options.optimizer = AdafactorConfig{.min_dim_size_to_factor = 5};
  ASSERT_OK_AND_ASSIGN(const Plan whole, MakePlan(TinyModel(), options));
  EXPECT_EQ(whole.worker_training.optimizer_state, 15 * 48 * 4);
  options.optimizer = AdafactorConfig{.min_dim_size_to_factor = 4};
  ASSERT_OK_AND_ASSIGN(const Plan factored, MakePlan(TinyModel(), options));
  EXPECT_EQ(factored.worker_training.optimizer_state, 15 * 2 * (4 + 6) * 4);
}

TEST(PlanTest, CountsTheExchangeOfATokenPerDirectionAndPass) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(TinyModel(), {}));
  EXPECT_EQ(plan.exchange.layer_each_way, 2 * 4 * 4);  // two rows of M floats
  EXPECT_EQ(plan.exchange.source_token_forward, 1 * 2 * 32);
  EXPECT_EQ(plan.exchange.target_token_forward, 2 * 2 * 32);
  EXPECT_EQ(plan.exchange.source_token_backward, 1 * 2 * 32);
  EXPECT_EQ(plan.exchange.target_token_backward, 2 * 2 * 32);
}

TEST(PlanTest, HalvesTheExchangeOfBFloat16) {
  ModelConfig model = TinyModel();
  model.wire_type = ComputeType::kBFloat16;
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(model, {}));
  EXPECT_EQ(plan.exchange.layer_each_way, 2 * 4 * 2);
  EXPECT_EQ(plan.exchange.source_token_backward, 1 * 2 * 16);
  ASSERT_OK_AND_ASSIGN(const Plan whole, MakePlan(TinyModel(), {}));
  EXPECT_EQ(plan.worker_serving.weights, whole.worker_serving.weights);
}

// Rounded weights of products replace the stored ones, and are kept beside them
// where they are updated. Gates and norms are not rounded.
TEST(PlanTest, CountsRoundedWeights) {
  ModelConfig model = TinyModel();
  model.compute_type = ComputeType::kBFloat16;
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(model, {.workers = 3}));
  EXPECT_EQ(plan.worker_serving.weights, 3 * 2 * 48 * 2);
  EXPECT_EQ(plan.worker_training.weights, 3 * 2 * 48 * (4 + 2));
  EXPECT_EQ(plan.worker_training.gradients, 2 * 3 * 2 * 48 * 4);
  int64_t rounded = 0;
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(model, LossConfig()));
  for (const Node* node : program.NodesOf("parameter")) {
    const ValueType& type = program.type(node->outputs[0]);
    if (type.type == ElementType::kBFloat16 &&
        !absl::StrContains(StringAttribute(node->attributes, "name"),
                           ".moe.")) {
      rounded += ShapeSize(type.shape).size();
    }
  }
  const int64_t dense = plan.parameters.Total() - plan.parameters.experts;
  EXPECT_EQ(plan.router_serving.weights, 4 * dense - 2 * rounded);
  EXPECT_EQ(plan.router_training.weights, plan.router_serving.weights);
  EXPECT_EQ(plan.coordinator_training.weights, 4 * dense);
  ASSERT_OK_AND_ASSIGN(const Plan reduced,
                       MakePlan(model, {.routers_reduce = true}));
  EXPECT_EQ(reduced.router_training.weights, 4 * dense + 2 * rounded);
}

// Gradients are summed, and optimizer state is, where parameters are updated.
TEST(PlanTest, CountsDenseParametersWhereTheyAreUpdated) {
  PlanOptions options{.optimizer = AdamConfig()};
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(TinyModel(), options));
  const int64_t dense = 4 * (plan.parameters.Total() - plan.parameters.experts);
  EXPECT_EQ(plan.router_training.weights, dense);
  EXPECT_EQ(plan.router_training.gradients, dense);
  EXPECT_EQ(plan.router_training.optimizer_state, 0);
  EXPECT_EQ(plan.coordinator_training.Total(), (1 + 2 + 2) * dense);

  // Each of two routers keeps the gradients of three microbatches.
  options.routers = 2;
  options.routers_reduce = true;
  options.microbatches_per_step = 5;
  ASSERT_OK_AND_ASSIGN(const Plan two, MakePlan(TinyModel(), options));
  EXPECT_EQ(two.coordinator_training.Total(), 0);
  EXPECT_EQ(two.router_training.weights, dense);
  EXPECT_EQ(two.router_training.gradients, 3 * dense + dense / 2);
  EXPECT_EQ(two.router_training.optimizer_state, dense);
  EXPECT_EQ(two.router_training.activations, plan.router_training.activations);

  // Of many, one still has the largest tensor, the source embedding.
  options.routers = 1000;
  ASSERT_OK_AND_ASSIGN(const Plan many, MakePlan(TinyModel(), options));
  EXPECT_EQ(many.router_training.gradients, dense + 4 * 11 * 4);
  EXPECT_EQ(many.router_training.optimizer_state, 2 * 4 * 11 * 4);
}

// An int8 weight takes one byte, and each column a scale and a sum.
TEST(PlanTest, CountsWeightsOfInt8) {
  ModelConfig model = TinyModel();
  model.model_width = model.expert_width = model.ffn_width = 64;
  model.source_vocabulary_size = model.target_vocabulary_size = 1000;
  ASSERT_OK_AND_ASSIGN(const Plan floats, MakePlan(model, {.workers = 3}));
  model.compute_type = ComputeType::kInt8;
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(model, {.workers = 3}));
  const int64_t M = model.model_width, H = model.expert_width;
  EXPECT_EQ(plan.worker_serving.weights,
            3 * 2 * (Int8MatrixBytes(M, H) + Int8MatrixBytes(H, M)));
  EXPECT_LT(plan.router_serving.weights, floats.router_serving.weights * 3 / 4);
}

TEST(PlanTest, ModelsOfInt8AreNotTrained) {
  ModelConfig model = TinyModel();
  model.compute_type = ComputeType::kInt8;
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       MakePlan(model, {.memory_bytes = int64_t{1} << 30}));
  EXPECT_EQ(plan.router_training.Total(), 0);
  EXPECT_EQ(plan.worker_training.Total(), 0);
  EXPECT_EQ(plan.coordinator_training.Total(), 0);
  EXPECT_EQ(plan.fewest_workers_training, 0);
  EXPECT_EQ(plan.fewest_workers_serving, 1);
  EXPECT_THAT(
      PlanToText(plan),
      AllOf(HasSubstr("worker, serve"), Not(HasSubstr(", train")),
            Not(HasSubstr("backward")), Not(HasSubstr("gradients from")),
            Not(HasSubstr("adafactor"))));
  const auto json = nlohmann::json::parse(PlanToJson(plan));
  EXPECT_EQ(json["memory"].size(), 2u);
  EXPECT_FALSE(json["within"].contains("fewest_workers_training"));
}

// MakePlan() finds the fewest workers whose memory suffices; with one byte
// less, it takes more workers or none suffice (0).
TEST(PlanTest, FindsTheFewestWorkersThatFit) {
  const ModelConfig model = TinyModel();
  for (const int64_t workers : {1, 2, 3, 5}) {
    SCOPED_TRACE(workers);
    ASSERT_OK_AND_ASSIGN(const Plan plan,
                         MakePlan(model, {.workers = workers}));
    EXPECT_EQ(plan.fewest_workers_serving, 0);
    PlanOptions options{.workers = 1,
                        .memory_bytes = plan.worker_training.Total()};
    ASSERT_OK_AND_ASSIGN(Plan room, MakePlan(model, options));
    EXPECT_EQ(room.fewest_workers_training, workers);
    --options.memory_bytes;
    ASSERT_OK_AND_ASSIGN(room, MakePlan(model, options));
    EXPECT_EQ(room.fewest_workers_training, workers == 5   ? 0
                                            : workers == 3 ? 5
                                                           : workers + 1);
    options.memory_bytes = plan.worker_serving.Total();
    ASSERT_OK_AND_ASSIGN(room, MakePlan(model, options));
    EXPECT_EQ(room.fewest_workers_serving, workers);
  }
}

TEST(PlanTest, PlansADenseModelWithoutWorkersToUse) {
  ModelConfig model = TinyModel();
  model.experts = 0;
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(model, {.workers = 2}));
  EXPECT_EQ(plan.parameters.experts, 0);
  EXPECT_EQ(plan.parameters.gates, 0);
  EXPECT_EQ(plan.parameters.dense_ffn, 5 * 80);
  EXPECT_EQ(plan.worker_training.Total(), 0);
  EXPECT_EQ(plan.exchange.layer_each_way, 0);
  EXPECT_THAT(PlanToText(plan), HasSubstr("all dense"));
}

TEST(PlanTest, RefusesWhatCannotBePlanned) {
  EXPECT_THAT(MakePlan(TinyModel(), {.routers = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "routers: expected 1 to 65536, got 0"));
  EXPECT_THAT(MakePlan(TinyModel(), {.workers = 65537}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "workers: expected 1 to 65536, got 65537"));
  ModelConfig model = TinyModel();
  model.experts = 2049;
  EXPECT_THAT(MakePlan(model, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "experts: expected 0 to 2048, got 2049"));
}

// The plan of the largest configuration fits in 64 bits.
TEST(PlanTest, SurvivesTheLargestConfiguration) {
  ModelConfig model;
  model.encoder_layers = kMaxLayers;
  model.decoder_layers = kMaxLayers;
  model.model_width = kMaxWidth;
  model.ffn_width = kMaxWidth;
  model.expert_width = kMaxWidth;
  model.heads = 1024;
  model.head_width = 1024;
  model.experts = kMaxExperts;
  model.moe_period = 1;
  model.source_vocabulary_size = 1 << 24;
  model.target_vocabulary_size = 1 << 24;
  model.max_positions = 65536;
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       MakePlan(model, {.routers = 65536,
                                        .tokens_per_microbatch = 1 << 24,
                                        .optimizer = AdamConfig()}));
  EXPECT_EQ(plan.parameters.experts, int64_t{2000} * 2048 * (int64_t{1} << 33));
  EXPECT_GT(plan.worker_training.Total(), plan.worker_training.weights);
  EXPECT_GT(plan.router_training.Total(), plan.router_training.weights);
  model.experts = 0;
  ASSERT_OK_AND_ASSIGN(const Plan dense,
                       MakePlan(model, {.optimizer = AdamConfig(),
                                        .routers_reduce = true,
                                        .microbatches_per_step = 65536}));
  EXPECT_GT(dense.router_training.Total(), dense.router_training.gradients);
}

TEST(PlanReportTest, StatesBothTotalsInAlignedText) {
  ASSERT_OK_AND_ASSIGN(
      const ModelConfig model,
      LoadModelConfig("deploy/config/gshard_2048e_36l.textproto"));
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       MakePlan(model, {.routers = 16, .workers = 1000}));
  const std::string text = PlanToText(plan);
  EXPECT_THAT(text,
              AllOf(HasSubstr("619,366,318,080"), HasSubstr("619.37 B"),
                    HasSubstr("norm scales"), HasSubstr("619,366,412,288"),
                    HasSubstr("36,864 in all"),
                    HasSubstr("3 or 2 experts of each layer a worker")));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(PlanReportTest, SaysWhatFits) {
  ASSERT_OK_AND_ASSIGN(
      const ModelConfig model,
      LoadModelConfig("deploy/config/gshard_2048e_36l.textproto"));
  ASSERT_OK_AND_ASSIGN(const Plan plan,
                       MakePlan(model, {.routers = 16,
                                        .workers = 64,
                                        .memory_bytes = int64_t{80} << 30}));
  const std::string text = PlanToText(plan);
  EXPECT_THAT(text, AllOf(HasSubstr("WITHIN 80.00 GiB  fits"),
                          HasSubstr("router, train      yes\n"),
                          HasSubstr("worker, train       no"),
                          HasSubstr("worker, serve      yes")));
  const auto json = nlohmann::json::parse(PlanToJson(plan));
  EXPECT_GT(json["within"]["fewest_workers_training"], 64);
  EXPECT_LT(json["within"]["fewest_workers_serving"], 64);
}

TEST(PlanReportTest, GivesExactNumbersInJson) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(TinyModel(), {.workers = 3}));
  const auto json = nlohmann::json::parse(PlanToJson(plan));
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_EQ(json["parameters"]["experts"], 15 * 48);
  EXPECT_EQ(json["parameters"]["total"], plan.parameters.Total());
  EXPECT_EQ(json["memory"]["worker_serving"]["weights_bytes"],
            plan.worker_serving.weights);
  EXPECT_EQ(json["memory"]["coordinator_training"]["total_bytes"],
            plan.coordinator_training.Total());
  EXPECT_EQ(json["exchange_per_token"]["layer_each_way_bytes"], 32);
}

}  // namespace
}  // namespace gshard
