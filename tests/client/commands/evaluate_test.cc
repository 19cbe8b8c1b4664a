#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "tests/client/command_run.h"
#include "tests/client/fake_router.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTest[] =
    "de\tHallo Welt\thello world\n"
    "fr\tbonjour\tgood day\n"
    "de\tTag\tday\n";

TEST(EvaluateCommandTest, SaysWhenSacrebleuIsMissing) {
  FakeRouter router;
  const ScratchFolder folder;
  const CommandRun run(EvaluateCommand,
                       {"--test", folder.Write("test.tsv", kTest), "--out",
                        folder.path() + "/out", "--sacrebleu=/none", "--router",
                        router.address()});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("No scores: no sacrebleu that runs at /none"),
                    HasSubstr("de        Hallo Welt  hello world  "
                              "de:HALLO WELT")));
  EXPECT_EQ(folder.Read("out/hypotheses.txt"),
            "de:HALLO WELT\nfr:BONJOUR\nde:TAG\n");
  EXPECT_EQ(folder.Read("out/references.txt"), "hello world\ngood day\nday\n");
  EXPECT_EQ(folder.Read("out/de.sources.txt"), "Hallo Welt\nTag\n");
}

TEST(EvaluateCommandTest, ReadsLinesWithoutALanguage) {
  FakeRouter router;
  const ScratchFolder folder;
  const std::string test = folder.Write(
      "test.tsv", "Hallo Welt\thello world\nfr\tbonjour\tgood day\n");
  const CommandRun run(
      EvaluateCommand,
      {"--test", test, "--from=de", "--out", folder.path() + "/out",
       "--sacrebleu=/none", "--router", router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(folder.Read("out/hypotheses.txt"), "de:HALLO WELT\nfr:BONJOUR\n");
  EXPECT_EQ(folder.Read("out/de.references.txt"), "hello world\n");
}

TEST(EvaluateCommandTest, SaysThatExpertsWereLost) {
  FakeRouter router;
  router.LoseExperts();
  const ScratchFolder folder;
  const CommandRun run(EvaluateCommand,
                       {"--test", folder.Write("test.tsv", kTest), "--json",
                        "--sacrebleu=/none", "--router", router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(nlohmann::json::parse(run.out).at("degraded_sentences"), 3);
  EXPECT_THAT(run.error, HasSubstr("3 lines were translated without experts"));
}

TEST(EvaluateCommandTest, RefusedLinesAreEmptyTranslations) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest& request) {
    for (int i = 0; i < request.sentences_size(); ++i) {
      if (request.sentences(i).text() == "c") {
        return absl::InvalidArgumentError(
            absl::StrCat("sentences[", i, "].text: too long"));
      }
    }
    return absl::OkStatus();
  });
  const ScratchFolder folder;
  // The second pair is on the fourth line.
  const std::string test =
      folder.Write("test.tsv", "de\ta\tb\n\nno pair\nde\tc\td\n");
  const CommandRun run(EvaluateCommand,
                       {"--test", test, "--sacrebleu=/none", "--json", "--out",
                        folder.path() + "/out", "--router", router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(folder.Read("out/hypotheses.txt"), "de:A\n\n");
  EXPECT_EQ(nlohmann::json::parse(run.out).at("blank_sentences"), 1);
  EXPECT_THAT(run.error,
              HasSubstr(test + ": 1 lines stayed blank; the first: line 4: "
                               "sentences[1].text: too long"));
}

TEST(EvaluateCommandTest, FailsIfEveryLineIsRefused) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest&) {
    return absl::InvalidArgumentError("sentences[0].language: unknown");
  });
  const ScratchFolder folder;
  EXPECT_THAT(
      CommandRun(EvaluateCommand, {"--test", folder.Write("test.tsv", kTest),
                                   "--router", router.address()})
          .status,
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("3 lines stayed blank; the first: line 1: ")));
}

TEST(EvaluateCommandTest, StopsIfTheFirstHundredLinesAreRefused) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest&) {
    return absl::InvalidArgumentError("sentences[0].language: unknown");
  });
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, "de\ta\tb\n");
  const ScratchFolder folder;
  EXPECT_THAT(
      CommandRun(EvaluateCommand, {"--test", folder.Write("test.tsv", text),
                                   "--router", router.address()})
          .status,
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line 1: ")));
  EXPECT_LT(router.requests().size(), 1000u);
}

TEST(EvaluateCommandTest, PrintsScoresByLanguageAndOverAll) {
  FakeRouter router;
  const ScratchFolder folder;
  // Reports the number of references as its score.
  const std::string program = folder.Write(
      "sacrebleu",
      "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n"
      "echo \"{\\\"name\\\": \\\"BLEU\\\", \\\"score\\\": $(wc -l < $1), "
      "\\\"signature\\\": \\\"tok:13a\\\"}\"\n",
      /*executable=*/true);
  const std::vector<std::string> arguments = {
      "--test",        folder.Write("test.tsv", kTest),
      "--sacrebleu",   program,
      "--samples=0",   "--router",
      router.address()};
  const CommandRun run(EvaluateCommand, arguments);
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("language  sentences  BLEU\n"
                                 "de                2  2.00\n"
                                 "fr                1  1.00\n"
                                 "all               3  3.00\n"
                                 "BLEU tok:13a\n"));

  std::vector<std::string> as_json = arguments;
  as_json.insert(as_json.end(), {"--json", "--limit=2"});
  const CommandRun json_run(EvaluateCommand, as_json);
  ASSERT_OK(json_run.status);
  const auto json = nlohmann::json::parse(json_run.out, nullptr, false);
  EXPECT_EQ(json["sentences"], 2);
  EXPECT_EQ(json["results"][2]["language"], "all");
  EXPECT_EQ(json["results"][2]["scores"][0]["score"], 2.0);
}

TEST(EvaluateCommandTest, ALanguageNamedAllIsNotTheTotal) {
  FakeRouter router;
  const ScratchFolder folder;
  const CommandRun run(
      EvaluateCommand,
      {"--test", folder.Write("test.tsv", "all\ta\tb\nde\tc\td\n"), "--out",
       folder.path() + "/out", "--sacrebleu=/none", "--router",
       router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(folder.Read("out/hypotheses.txt"), "all:A\nde:C\n");
  EXPECT_EQ(folder.Read("out/all.hypotheses.txt"), "all:A\n");
}

TEST(EvaluateCommandTest, KeepsTranslationsThatCannotBeScored) {
  FakeRouter router;
  const ScratchFolder folder, temporary;
  const std::string program =
      folder.Write("sacrebleu",
                   "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n"
                   "printf 'no sc\\303res' >&2\nexit 4\n",
                   /*executable=*/true);
  const std::vector<std::string> arguments = {
      "--test",        folder.Write("test.tsv", kTest),
      "--json",        "--sacrebleu",
      program,         "--router",
      router.address()};
  ASSERT_EQ(setenv("TMPDIR", temporary.path().c_str(), 1), 0);
  const CommandRun run(EvaluateCommand, arguments);
  unsetenv("TMPDIR");
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kInternal,
                                   AllOf(HasSubstr(temporary.path()),
                                         HasSubstr("ended with 4: no sc"))));
  const auto json = nlohmann::json::parse(run.out, nullptr, false);
  EXPECT_EQ(json["no_scores_because"],
            "sacrebleu ended with 4: no sc\xEF\xBF\xBDres");
  const std::string name =
      json["out"].get<std::string>().substr(temporary.path().size() + 1);
  EXPECT_EQ(temporary.Read(name + "/hypotheses.txt"),
            "de:HALLO WELT\nfr:BONJOUR\nde:TAG\n");
}

// It would be a folder of the disk named "s3:".
TEST(EvaluateCommandTest, WritesToADiskOnly) {
  FakeRouter router;
  const ScratchFolder folder;
  EXPECT_THAT(CommandRun(EvaluateCommand,
                         {"--test", folder.Write("test.tsv", kTest), "--out",
                          "s3://bucket/out", "--router", router.address()})
                  .status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected a path of a disk")));
  EXPECT_TRUE(router.requests().empty());
  EXPECT_FALSE(std::filesystem::exists("s3:"));
}

// SIGINT arrives when there are files to clean up: while sacrebleu is probed or
// while it runs.
class InterruptedEvaluationTest : public ::testing::TestWithParam<bool> {};

TEST_P(InterruptedEvaluationTest, LeavesNothingBehindAndSaysSo) {
  FakeRouter router;
  const ScratchFolder folder, temporary;
  const std::string program = folder.Write(
      "sacrebleu",
      std::string("#!/bin/sh\n") +
          (GetParam() ? "" : "[ \"$1\" = --version ] && exit 0\n") +
          "kill -INT $PPID\nexec sleep 3600\n",
      /*executable=*/true);
  ASSERT_EQ(setenv("TMPDIR", temporary.path().c_str(), 1), 0);
  const CommandRun run(EvaluateCommand,
                       {"--test", folder.Write("test.tsv", kTest),
                        "--sacrebleu", program, "--router", router.address()});
  unsetenv("TMPDIR");
  EXPECT_THAT(run.status,
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("interrupted")));
  EXPECT_EQ(ExitCodeOf(run.status), 128 + SIGINT);
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
}

INSTANTIATE_TEST_SUITE_P(WhileItIsLookedFor, InterruptedEvaluationTest,
                         ::testing::Bool());

TEST(EvaluateCommandTest, NeedsAReadableTest) {
  EXPECT_TRUE(IsUsageError(CommandRun(EvaluateCommand, {}).status));
  EXPECT_THAT(CommandRun(EvaluateCommand, {"--test=/none.tsv"}).status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none.tsv")));
}

}  // namespace
}  // namespace gshard
