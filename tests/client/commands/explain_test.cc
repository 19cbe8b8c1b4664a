#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/commands.h"
#include "tests/client/command_run.h"
#include "tests/client/fake_router.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(ExplainCommandTest, PrintsTables) {
  FakeRouter router;
  const CommandRun run(ExplainCommand,
                       {"Bild", "--from=de", "--router", router.address()});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("fake@1"));
  EXPECT_THAT(run.out, HasSubstr("encoder.0.moe"));
  EXPECT_THAT(run.out, HasSubstr("Bild"));
  EXPECT_THAT(run.out, HasSubstr("w0"));
}

TEST(ExplainCommandTest, PrintsJson) {
  FakeRouter router;
  const CommandRun run(ExplainCommand, {"Bild", "--from=de", "--json",
                                        "--router", router.address()});
  ASSERT_OK(run.status);
  const auto json = nlohmann::json::parse(run.out, nullptr, false);
  EXPECT_EQ(json["source"][1]["piece"], "Bild");
  EXPECT_EQ(json["source"][0]["layers"][0]["visits"][0]["hosts"][0], "w0");
}

TEST(ExplainCommandTest, AsksTheNextRouterIfOneIsUnavailable) {
  FakeRouter router;
  const CommandRun run(ExplainCommand,
                       {"Bild", "--router", "127.0.0.1:1," + router.address()});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("fake@1"));
  EXPECT_THAT(
      CommandRun(ExplainCommand,
                 {"secret", "--router", router.address() + ",127.0.0.1:1"})
          .status,
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("debug calls")));
}

TEST(ExplainCommandTest, ErrorsAreTheRouters) {
  FakeRouter router;
  EXPECT_THAT(
      CommandRun(ExplainCommand, {"secret", "--router", router.address()})
          .status,
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("debug calls")));
  EXPECT_THAT(CommandRun(ExplainCommand, {"a", "--router=127.0.0.1:1"}).status,
              StatusIs(absl::StatusCode::kUnavailable,
                       ::testing::AllOf(HasSubstr("router 127.0.0.1:1: "),
                                        HasSubstr("onnection refused"))));
  EXPECT_TRUE(IsUsageError(CommandRun(ExplainCommand, {}).status));
  EXPECT_TRUE(IsUsageError(
      CommandRun(ExplainCommand, {"a", "--router=nowhere"}).status));
  EXPECT_THAT(CommandRun(ExplainCommand, {"--help"}).out,
              HasSubstr("--enable_debug_calls"));
}

}  // namespace
}  // namespace gshard
