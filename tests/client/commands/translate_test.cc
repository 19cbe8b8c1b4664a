#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "client/commands.h"
#include "tests/client/command_run.h"
#include "tests/client/fake_router.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(TranslateCommandTest, TranslatesArguments) {
  FakeRouter router;
  const CommandRun run(
      TranslateCommand,
      {"Guten Tag", "Hallo", "--from", "de", "--model=demo", "--beam=2",
       "--max-length=9", "--router", router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out, "de:GUTEN TAG\nde:HALLO\n");
  const v1::TranslateRequest request = router.requests().at(0);
  EXPECT_EQ(request.model(), "demo");
  EXPECT_EQ(request.options().beam_size(), 2);
  EXPECT_FLOAT_EQ(request.options().length_penalty(), 0.6f);
  EXPECT_EQ(request.options().max_length(), 9);
  EXPECT_FALSE(request.options().greedy());
}

TEST(TranslateCommandTest, TranslatesStandardInputLineByLine) {
  FakeRouter router;
  const CommandRun run(TranslateCommand,
                       {"--tsv", "--greedy", "--router", router.address()},
                       "de\ta\n\nfr\tb\tignored\n");
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out, "de:A\n\nfr:B\n");
  const v1::TranslateRequest request = router.requests().at(0);
  EXPECT_TRUE(request.options().greedy());
  EXPECT_EQ(request.options().beam_size(), 0);
}

TEST(TranslateCommandTest, TranslatesAFile) {
  FakeRouter router;
  const ScratchFolder folder;
  const std::string file = folder.Write("text", "eins\nzwei\n");
  const CommandRun run(TranslateCommand, {"--file", file, "--from=de",
                                          "--router", router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out, "de:EINS\nde:ZWEI\n");
  EXPECT_THAT(CommandRun(TranslateCommand,
                         {"--file=/none", "--router", router.address()})
                  .status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
}

TEST(TranslateCommandTest, PrintsNBestWithLineAndScore) {
  FakeRouter router;
  const CommandRun run(TranslateCommand, {"a", "", "b", "--n_best=2",
                                          "--router", router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out,
            "1\t-0.5000\t:A\n1\t-1.0000\t:A again\n"
            "3\t-0.5000\t:B\n3\t-1.0000\t:B again\n");
}

TEST(TranslateCommandTest, PrintsJsonLines) {
  FakeRouter router;
  const CommandRun run(TranslateCommand, {"ä", "", "--json", "--from=de",
                                          "--router", router.address()});
  ASSERT_OK(run.status);
  const std::vector<std::string> lines = absl::StrSplit(run.out, '\n');
  ASSERT_EQ(lines.size(), 3u);  // the last is empty
  const auto first = nlohmann::json::parse(lines[0], nullptr, false);
  EXPECT_EQ(first["line"], 1);
  EXPECT_EQ(first["source"], "ä");
  EXPECT_EQ(first["hypotheses"][0]["score"], -0.5);
  const auto second = nlohmann::json::parse(lines[1], nullptr, false);
  EXPECT_EQ(second["line"], 2);
  EXPECT_TRUE(second["hypotheses"].empty());
}

TEST(TranslateCommandTest, FlagsThatContradictAreUsageErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"a", "--file=b"},
           {"--tsv", "--from=de"},
           {"a", "--router=unix:/x", "--n_best=5", "--beam=4"},
           {"a", "--router=unix:/x", "--n_best=2", "--greedy"},
           {"a", "--beam=33"}}) {
    EXPECT_TRUE(IsUsageError(CommandRun(TranslateCommand, arguments).status))
        << arguments.back();
  }
}

TEST(TranslateCommandTest, SaysWhenThereIsNoSystem) {
  const ScratchFolder folder;
  EXPECT_THAT(
      CommandRun(TranslateCommand, {"a", "--directory", folder.path()}).status,
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr("does `gshard up` run?")));
}

}  // namespace
}  // namespace gshard
