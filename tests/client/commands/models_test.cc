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

TEST(ModelsCommandTest, PrintsATable) {
  FakeRouter router;
  const CommandRun run(ModelsCommand,
                       {"--router", "127.0.0.1:1," + router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(
      run.out,
      "model      current  experts        languages  without one  max length\n"
      "titles@10  no       some are lost  de,fr      refused             128\n"
      "titles@20  yes      all            de,fr      de                  "
      "256\n");
}

TEST(ModelsCommandTest, PrintsJson) {
  FakeRouter router;
  const CommandRun run(ModelsCommand, {"--json", "--router", router.address()});
  ASSERT_OK(run.status);
  const auto json = nlohmann::json::parse(run.out, nullptr, false);
  EXPECT_EQ(json["models"][1]["model"], "titles@20");
  EXPECT_EQ(json["models"][0]["source_languages"][1], "fr");
}

TEST(ModelsCommandTest, ErrorsAreTheRouters) {
  EXPECT_THAT(CommandRun(ModelsCommand, {"--router=127.0.0.1:1"}).status,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("router 127.0.0.1:1: ")));
  EXPECT_TRUE(IsUsageError(CommandRun(ModelsCommand, {"titles"}).status));
}

}  // namespace
}  // namespace gshard
