#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/commands.h"
#include "tests/client/command_run.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(PlanCommandTest, PrintsJson) {
  const CommandRun run(PlanCommand,
                       {"--config=deploy/config/gshard_2048e_36l.textproto",
                        "--routers", "16", "--workers", "64", "--json"});
  ASSERT_OK(run.status);
  const nlohmann::json plan = nlohmann::json::parse(run.out, nullptr, false);
  ASSERT_TRUE(plan.is_object()) << run.out;
  EXPECT_THAT(run.out, HasSubstr("64"));
}

TEST(PlanCommandTest, PrintsTables) {
  const CommandRun run(PlanCommand,
                       {"--config=deploy/config/gshard_128e_12l.textproto"});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("experts"));
}

// The optimizer and sizes are the job's, unless flags name others.
TEST(PlanCommandTest, ReadsAJob) {
  const std::string job = "--job=deploy/config/demo_job.textproto";
  const CommandRun run(PlanCommand, {job});
  ASSERT_OK(run.status);
  const CommandRun same(
      PlanCommand, {job, "--optimizer=adam", "--tokens_per_microbatch=768"});
  EXPECT_EQ(run.out, same.out);
  for (const char* other : {"--optimizer=adafactor",
                            "--tokens_per_microbatch=769", "--reduce=gloo"}) {
    const CommandRun changed(PlanCommand, {job, other});
    ASSERT_OK(changed.status);
    EXPECT_NE(run.out, changed.out) << other;
  }
}

// A model of GPU stands for its memory.
TEST(PlanCommandTest, KnowsGpus) {
  const std::string config = "--config=deploy/config/gshard_128e_12l.textproto";
  const CommandRun run(PlanCommand, {config, "--device=H200"});
  ASSERT_OK(run.status);
  const CommandRun same(PlanCommand, {config, "--memory_gib=139"});
  EXPECT_EQ(run.out, same.out);
  const CommandRun unknown(PlanCommand, {config, "--device=t4"});
  EXPECT_TRUE(IsUsageError(unknown.status));
  EXPECT_THAT(unknown.status, StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("h100, h200, b200, or cuda:N, "
                                                 "got 't4'")));
  const CommandRun both(PlanCommand,
                        {config, "--device=h100", "--memory_gib=80"});
  EXPECT_TRUE(IsUsageError(both.status));
  // A machine without this GPU.
  const CommandRun absent(PlanCommand, {config, "--device=cuda:99"});
  EXPECT_THAT(absent.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("device cuda:99")));
}

// Weights of int8 take on a GPU what they take on a host.
TEST(PlanCommandTest, CountsInt8OnGpus) {
  const std::string path = testing::TempDir() + "/int8.textproto";
  std::ofstream(path)
      << std::ifstream("deploy/config/gshard_128e_12l.textproto").rdbuf()
      << "compute_type: INT8\n";
  const CommandRun run(PlanCommand, {"--config=" + path, "--device=h200"});
  ASSERT_OK(run.status);
  const CommandRun same(PlanCommand, {"--config=" + path, "--memory_gib=139"});
  EXPECT_EQ(run.out, same.out);
}

TEST(PlanCommandTest, WrongCallsAreUsageErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{}, {"--config=x", "--job=y"}}) {
    const CommandRun run(PlanCommand, arguments);
    EXPECT_TRUE(IsUsageError(run.status));
    EXPECT_THAT(run.status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected either --config or --job")));
  }
  EXPECT_TRUE(IsUsageError(
      CommandRun(PlanCommand, {"--config=x", "--workers=0"}).status));
}

TEST(PlanCommandTest, AMissingFileIsNot) {
  const CommandRun run(PlanCommand, {"--config=/none.textproto"});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kNotFound,
                                   HasSubstr("/none.textproto")));
  EXPECT_FALSE(IsUsageError(run.status));
}

TEST(PlanCommandTest, HelpHasAnExample) {
  const CommandRun run(PlanCommand, {"--help"});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("gshard plan --config deploy/config/"));
}

}  // namespace
}  // namespace gshard
