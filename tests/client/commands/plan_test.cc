#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  const CommandRun same(PlanCommand,
                        {job, "--optimizer=adam", "--tokens_per_microbatch=768",
                         "--sentence_length=64"});
  EXPECT_EQ(run.out, same.out);
  for (const char* other : {"--optimizer=adafactor", "--sentence_length=65",
                            "--tokens_per_microbatch=769"}) {
    const CommandRun changed(PlanCommand, {job, other});
    ASSERT_OK(changed.status);
    EXPECT_NE(run.out, changed.out) << other;
  }
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
