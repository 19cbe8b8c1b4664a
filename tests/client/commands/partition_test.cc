#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "client/commands.h"
#include "services/config/model_config.h"
#include "services/train/plan.h"
#include "tests/client/command_run.h"
#include "tests/client/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

// Two layers in each stack, the first an MoE layer with four experts.
constexpr char kSmall[] = R"(name: "small"
encoder_layers: 2 decoder_layers: 2
model_width: 8 ffn_width: 12 expert_width: 6
heads: 2 head_width: 4 experts: 4
source_vocabulary_size: 11 target_vocabulary_size: 13
)";

class PartitionCommandTest : public ::testing::Test {
 protected:
  PartitionCommandTest() : config_(folder_.path() + "/small.textproto") {
    std::ofstream(config_) << kSmall;
  }

  CommandRun Run(std::vector<std::string> flags) const {
    flags.push_back("--config=" + config_);
    return CommandRun(PartitionCommand, flags);
  }

  Json RunJson(std::vector<std::string> flags) const {
    flags.push_back("--json");
    const CommandRun run = Run(std::move(flags));
    EXPECT_OK(run.status);
    return Json::parse(run.out, nullptr, false);
  }

  ScratchFolder folder_;
  const std::string config_;
};

void ExpectTotalsOfThePlan(const std::string& config, const Json& json) {
  const auto model = LoadModelConfig(config);
  ASSERT_OK(model.status());
  const auto plan = MakePlan(*model, {});
  ASSERT_OK(plan.status());
  EXPECT_EQ(json["parameters"]["total"], plan->parameters.Total());
  EXPECT_EQ(json["parameters"]["total_without_norms"],
            plan->parameters.TotalWithoutNorms());
}

TEST_F(PartitionCommandTest, ParametersAreThoseOfThePlan) {
  const Json json = RunJson({"--routers=2", "--workers=2"});
  ASSERT_TRUE(json.is_object());
  ExpectTotalsOfThePlan(config_, json);
  EXPECT_EQ(json["devices"]["router"], 2);
  EXPECT_EQ(json["devices"]["worker"], 2);
  // Two MoE layers of four experts, each an 8x6 and a 6x8 matrix, on two
  // workers.
  EXPECT_EQ(json["parameters"]["worker"], 2 * 4 * 2 * 8 * 6);
  EXPECT_EQ(json["parameters_per_device"]["worker"], 2 * 2 * 2 * 8 * 6);
  EXPECT_EQ(json["memory"]["worker"]["parameters_bytes"],
            4 * 2 * 2 * 2 * 8 * 6);
  EXPECT_EQ(json["memory"]["worker"]["gradients_bytes"],
            json["memory"]["worker"]["parameters_bytes"]);
}

TEST_F(PartitionCommandTest, ThePapersLargestModelHasItsParameters) {
  const std::string config = "deploy/config/gshard_2048e_36l.textproto";
  const CommandRun run(
      PartitionCommand,
      {"--config=" + config, "--routers=2048", "--workers=2048", "--json"});
  ASSERT_OK(run.status);
  const Json json = Json::parse(run.out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ExpectTotalsOfThePlan(config, json);
  // Each worker holds one expert of each of the 18 MoE layers.
  EXPECT_EQ(json["parameters_per_device"]["worker"], 18 * 2 * 1024 * 8192);
}

TEST_F(PartitionCommandTest, RowsCrossTwiceForwardAndTwiceBack) {
  const Json json =
      RunJson({"--routers=2", "--workers=2", "--tokens_per_microbatch=64",
               "--sentence_length=16"});
  ASSERT_TRUE(json.is_object());
  int forward = 0, backward = 0;
  int64_t bytes_per_token = 0;
  for (const Json& sent : json["collectives"]) {
    if (sent["kind"] != "send_rows" && sent["kind"] != "return_rows") continue;
    ++(sent["direction"] == "forward" ? forward : backward);
    EXPECT_THAT(sent["where"].get<std::string>(), HasSubstr(".moe"));
    // Each of the 64 tokens sends 2 rows of 8 floats.
    EXPECT_EQ(sent["bytes"], 64 * 2 * 8 * 4);
    bytes_per_token += sent["bytes_per_token"].get<int64_t>();
  }
  EXPECT_EQ(forward, 2 * 2);
  EXPECT_EQ(backward, 2 * 2);
  const auto plan = MakePlan(*LoadModelConfig(config_), {});
  const ExchangePlan& exchange = plan->exchange;
  EXPECT_EQ(bytes_per_token,
            exchange.source_token_forward + exchange.source_token_backward +
                exchange.target_token_forward + exchange.target_token_backward);
}

TEST_F(PartitionCommandTest, PrintsASummary) {
  const CommandRun run = Run({"--routers=2", "--workers=4"});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, StartsWith("program small.train, partitioned in "));
  for (const char* part : {"ROLE", "router", "worker", "MEMORY OF A DEVICE",
                           "COMMUNICATION", "all_reduce"}) {
    EXPECT_THAT(run.out, HasSubstr(part));
  }
}

TEST_F(PartitionCommandTest, PrintsTheProgramOfEachRole) {
  const CommandRun run = Run({"--print=program", "--workers=2"});
  ASSERT_OK(run.status);
  const size_t worker = run.out.find("# worker\n");
  ASSERT_NE(worker, std::string::npos);
  EXPECT_THAT(run.out, StartsWith("# router\nprogram \"small.train\" {\n"));
  EXPECT_THAT(run.out.substr(0, worker), HasSubstr("top2_gating"));
  EXPECT_THAT(run.out.substr(0, worker), Not(HasSubstr("ragged_dot(")));
  EXPECT_THAT(run.out.substr(worker), HasSubstr("ragged_dot("));
}

TEST_F(PartitionCommandTest, PrintsCollectivesMemoryAndExplanations) {
  const CommandRun collectives = Run({"--print=collectives", "--routers=2"});
  ASSERT_OK(collectives.status);
  EXPECT_THAT(collectives.out, HasSubstr("encoder.0.moe.gate"));
  const CommandRun memory = Run({"--print=memory"});
  ASSERT_OK(memory.status);
  EXPECT_THAT(memory.out, StartsWith("MEMORY OF A DEVICE"));
  const CommandRun explain = Run({"--print=explain", "--workers=2"});
  ASSERT_OK(explain.status);
  EXPECT_THAT(explain.out, HasSubstr("[expert, -, -]"));
}

TEST_F(PartitionCommandTest, WritesAPicture) {
  const std::string path = folder_.path() + "/moe.dot";
  const CommandRun run = Run({"--dot=" + path, "--routers=2", "--workers=2"});
  ASSERT_OK(run.status);
  std::stringstream dot;
  dot << std::ifstream(path).rdbuf();
  EXPECT_THAT(dot.str(), StartsWith("digraph \"small.train\" {"));
  EXPECT_THAT(dot.str(), HasSubstr("send_rows"));
  EXPECT_THAT(dot.str(), HasSubstr("[expert, -, -]"));
  EXPECT_THAT(Run({"--dot=/none/moe.dot"}).status,
              StatusIs(absl::StatusCode::kNotFound,
                       "create '/none/moe.dot': No such file or directory"));
}

TEST_F(PartitionCommandTest, ServingHasTwoPrograms) {
  const Json json = RunJson({"--serving", "--workers=2"});
  ASSERT_TRUE(json.is_array());
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["program"], "small.encode");
  EXPECT_EQ(json[1]["program"], "small.decode");
  EXPECT_EQ(json[0]["memory"]["router"]["gradients_bytes"], 0);
}

TEST_F(PartitionCommandTest, SlicesCutExperts) {
  const Json json = RunJson({"--workers=2", "--slices=2"});
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["devices"]["worker"], 4);
  EXPECT_EQ(json["parameters_per_device"]["worker"], 2 * 2 * 2 * 8 * 6 / 2);
}

TEST_F(PartitionCommandTest, WrongCallsAreUsageErrors) {
  EXPECT_TRUE(IsUsageError(CommandRun(PartitionCommand, {}).status));
  EXPECT_TRUE(IsUsageError(Run({"--routers=0"}).status));
  EXPECT_TRUE(IsUsageError(Run({"--print=all"}).status));
  EXPECT_TRUE(IsUsageError(Run({"--serving", "--training"}).status));
  EXPECT_TRUE(IsUsageError(Run({"--json", "--print=memory"}).status));
  const CommandRun run =
      Run({"--tokens_per_microbatch=100", "--sentence_length=101"});
  EXPECT_TRUE(IsUsageError(run.status));
  EXPECT_THAT(run.status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("101")));
}

TEST_F(PartitionCommandTest, AMissingFileIsNot) {
  const CommandRun run(PartitionCommand, {"--config=/none.textproto"});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kNotFound,
                                   HasSubstr("/none.textproto")));
  EXPECT_FALSE(IsUsageError(run.status));
}

TEST_F(PartitionCommandTest, HelpHasAnExample) {
  const CommandRun run(PartitionCommand, {"--help"});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("gshard partition --config deploy/config/"));
}

}  // namespace
}  // namespace gshard
