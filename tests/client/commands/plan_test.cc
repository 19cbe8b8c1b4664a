#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

TEST(PlanCommandTest, WrongCallsAreUsageErrors) {
  const CommandRun missing(PlanCommand, {});
  EXPECT_TRUE(IsUsageError(missing.status));
  EXPECT_THAT(missing.status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--config: expected a value")));
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
