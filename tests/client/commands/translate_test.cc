#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/commands.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "tests/client/command_run.h"
#include "tests/client/fake_router.h"
#include "tests/client/unix_server.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(TranslateCommandTest, TranslatesArguments) {
  FakeRouter router;
  const CommandRun run(
      TranslateCommand,
      {"Guten Tag", "Hallo", "--from", "de", "--model=demo", "--beam=2",
       "--max_length=9", "--router", router.address()});
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

TEST(TranslateCommandTest, LeavesRefusedLinesBlankOnRequest) {
  FakeRouter router;
  const std::vector<std::string> arguments = {"--tsv", "--on_error=blank",
                                              "--router", router.address()};
  const CommandRun run(TranslateCommand, arguments, "de\ta\nno tab\nfr\tb\n");
  EXPECT_EQ(run.out, "de:A\n\nfr:B\n");
  EXPECT_THAT(run.status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 lines stayed blank; the first: line 2: ")));
  EXPECT_EQ(ExitCodeOf(run.status), 1);

  std::vector<std::string> as_json = arguments;
  as_json.push_back("--json");
  const CommandRun json_run(TranslateCommand, as_json, "no tab\nde\ta\n");
  const std::vector<std::string> lines = absl::StrSplit(json_run.out, '\n');
  ASSERT_EQ(lines.size(), 3u);  // the last is empty
  EXPECT_THAT(nlohmann::json::parse(lines[0]).at("error").get<std::string>(),
              HasSubstr("line 1: expected language<TAB>text"));
  EXPECT_FALSE(nlohmann::json::parse(lines[1]).contains("error"));
}

// A failed write of the output, as on a full disk, ends the command early.
TEST(TranslateCommandTest, StopsWhenItsOutputIsLost) {
  FakeRouter router;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "a\n";
  const TextInput in(text);
  std::ofstream out("/dev/full");
  std::ostringstream error;
  Console console{in.file(), &out, &error,
                  [](const char*) -> const char* { return nullptr; }};
  EXPECT_THAT(
      TranslateCommand(
          std::vector<std::string>{"--from=de", "--sentences_per_call=1",
                                   "--calls=1", "--router", router.address()},
          console),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("could not be written")));
  EXPECT_LT(router.requests().size(), 10u);
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

TEST(TranslateCommandTest, AFolderIsNoText) {
  FakeRouter router;
  const ScratchFolder folder;
  for (const char* flag : {"--file", "--glossary"}) {
    EXPECT_THAT(CommandRun(TranslateCommand,
                           {flag, folder.path(), "--router", router.address()})
                    .status,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         folder.path() + ": is a directory"));
  }
  EXPECT_TRUE(router.requests().empty());
}

TEST(TranslateCommandTest, SaysHowToNameALanguageThatIsNeeded) {
  FakeRouter router;
  router.Refuse([](int, const v1::TranslateRequest&) {
    return absl::InvalidArgumentError(
        "sentences[0].language: expected one of de, fr, got \"\"");
  });
  EXPECT_THAT(
      CommandRun(TranslateCommand, {"a", "--router", router.address()}).status,
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("got \"\"; say which with --from")));
  EXPECT_THAT(CommandRun(TranslateCommand,
                         {"a", "--from=xx", "--router", router.address()})
                  .status.message(),
              ::testing::Not(HasSubstr("--from")));
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

TEST(TranslateCommandTest, AsksForPrefixesTermsAndWhatIsKept) {
  FakeRouter router;
  const ScratchFolder folder;
  const std::string terms =
      folder.Write("terms", "Bild\timage\n\nTon und Bild\tsound\n");
  const CommandRun run(TranslateCommand,
                       {"--from=de", "--prefix", "An image", "--glossary",
                        terms, "--keep", "GIMP,lib png", "--allow_unknown",
                        "--require_full", "--router", router.address()},
                       "Bild von GIMP\nGIMPs lib png\nnichts\n");
  ASSERT_OK(run.status);
  const v1::TranslateRequest request = router.requests().at(0);
  EXPECT_TRUE(request.require_full());
  EXPECT_EQ(request.options().unknown(), v1::UNKNOWN_POLICY_ALLOW);
  ASSERT_EQ(request.options().terms_size(), 2);
  EXPECT_EQ(request.options().terms(1).source(), "Ton und Bild");
  EXPECT_EQ(request.options().terms(1).target(), "sound");
  ASSERT_EQ(request.sentences_size(), 3);
  EXPECT_EQ(request.sentences(2).target_prefix(), "An image");
  ASSERT_EQ(request.sentences(0).keep_size(), 1);
  EXPECT_EQ(request.sentences(0).keep(0).begin(), 9);
  EXPECT_EQ(request.sentences(0).keep(0).end(), 13);
  ASSERT_EQ(request.sentences(1).keep_size(), 1);  // "GIMPs" is another word
  EXPECT_EQ(request.sentences(1).keep(0).begin(), 6);
  EXPECT_EQ(request.sentences(2).keep_size(), 0);
}

TEST(TranslateCommandTest, AGlossaryIsTwoColumns) {
  FakeRouter router;
  const ScratchFolder folder;
  for (const auto& [line, tabs] :
       std::vector<std::pair<std::string, std::string>>{
           {"Ton", "no tab"}, {"Ton\tsound\tclay", "2 tabs"}}) {
    const std::string terms = folder.Write("terms", "Bild\timage\n" + line);
    EXPECT_THAT(CommandRun(TranslateCommand, {"a", "--glossary", terms,
                                              "--router", router.address()})
                    .status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         terms +
                             ", line 2: expected source and target, "
                             "separated by a tab, got " +
                             tabs));
  }
  EXPECT_THAT(CommandRun(TranslateCommand, {"a", "--glossary=/none", "--router",
                                            router.address()})
                  .status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
}

TEST(TranslateCommandTest, AGlossaryMayHaveAByteOrderMark) {
  FakeRouter router;
  const ScratchFolder folder;
  const std::string terms = folder.Write("terms", "\uFEFFBild\timage\n");
  ASSERT_OK(CommandRun(TranslateCommand,
                       {"a", "--glossary", terms, "--router", router.address()})
                .status);
  EXPECT_EQ(router.requests().at(0).options().terms(0).source(), "Bild");
}

TEST(TranslateCommandTest, SaysWhereTextIsNoUtf8) {
  FakeRouter router;
  const ScratchFolder folder;
  const std::string terms =
      folder.Write("terms", "Bild\timage\nM\xFCller\tmiller\n");
  EXPECT_THAT(CommandRun(TranslateCommand, {"a", "--glossary", terms,
                                            "--router", router.address()})
                  .status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       terms + ", line 2: expected UTF-8, got byte 252 at "
                               "offset 1"));
  for (const char* flag : {"--model", "--prefix", "--keep"}) {
    const absl::Status status =
        CommandRun(TranslateCommand,
                   {"a", flag, "\xFC", "--router", router.address()})
            .status;
    EXPECT_TRUE(IsUsageError(status)) << status;
    EXPECT_THAT(status.message(),
                HasSubstr(std::string(flag) + ": expected UTF-8"));
  }
  EXPECT_TRUE(router.requests().empty());
}

TEST(TranslateCommandTest, AlternativesAreAllPrinted) {
  FakeRouter router;
  const CommandRun run(TranslateCommand, {"a", "--alternatives", "--beam=3",
                                          "--router", router.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out, "1\t-0.5000\t:A\n");  // the fake returns one hypothesis
  const v1::TranslateRequest request = router.requests().at(0);
  EXPECT_TRUE(request.options().alternatives());
  EXPECT_EQ(request.options().n_best(), 0);  // 0: the beam size
}

TEST(TranslateCommandTest, TranslationsAreDrawnOnRequest) {
  FakeRouter router;
  const CommandRun run(
      TranslateCommand,
      {"a", "--sample", "--n_best=20", "--top_k=5", "--temperature=0.7",
       "--seed=9", "--router", router.address()});
  ASSERT_OK(run.status);
  ASSERT_OK(CommandRun(TranslateCommand,
                       {"a", "--sample", "--router", router.address()})
                .status);
  const v1::TranslateOptions options = router.requests().at(0).options();
  EXPECT_EQ(options.beam_size(), 0);
  EXPECT_EQ(options.n_best(), 20);
  EXPECT_EQ(options.sampling().top_k(), 5);
  EXPECT_FLOAT_EQ(options.sampling().temperature(), 0.7f);
  EXPECT_EQ(options.sampling().seed(), 9u);
  const v1::TranslateOptions plain = router.requests().at(1).options();
  EXPECT_TRUE(plain.has_sampling());
  EXPECT_FALSE(plain.sampling().has_seed());
}

TEST(TranslateCommandTest, HelpHasAnExampleOfEachFeature) {
  const CommandRun run(TranslateCommand, {"--help"});
  for (const char* part :
       {"--prefix \"library for\"", "--alternatives", "--glossary terms.tsv",
        "--keep GIMP,libpng", "--n_best 4", "--timeout 5m", "--sample"}) {
    EXPECT_THAT(run.out, HasSubstr(part));
  }
}

TEST(TranslateCommandTest, FlagsThatContradictAreUsageErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"a", "--file=b"},
           {"--tsv", "--from=de"},
           {"a", "--router=unix:/x", "--n_best=5", "--beam=4"},
           {"a", "--router=unix:/x", "--n_best=2", "--greedy"},
           {"a", "--router=unix:/x", "--alternatives", "--greedy"},
           {"a", "--router=unix:/x", "--alternatives", "--keep=a"},
           {"a", "--router=unix:/x", "--sample", "--greedy"},
           {"a", "--router=unix:/x", "--sample", "--alternatives"},
           {"a", "--router=unix:/x", "--sample", "--keep=a"},
           {"a", "--router=unix:/x", "--seed=1"},
           {"a", "--router=unix:/x", "--keep=a,,b"},
           {"a", "--router=nowhere"},
           {"a", "--coordinator=nowhere"},
           {"a", "--router=unix:/x", "--tls_key=a"},
           {"a", "--beam=33"}}) {
    EXPECT_TRUE(IsUsageError(CommandRun(TranslateCommand, arguments).status))
        << arguments.back();
  }
}

TEST(TranslateCommandTest, SaysWhenThereIsNoSystem) {
  const ScratchFolder folder;
  const CommandRun run(TranslateCommand,
                       {"a", "--directory", folder.path(), "--patience=0s"});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr("does `gshard up` run?")));
  EXPECT_EQ(run.error, "");
}

// A coordinator that is being restarted, and then has no router at first.
class FakeStartingCoordinator final : public v1::CoordinatorService::Service {
 public:
  explicit FakeStartingCoordinator(std::string router)
      : router_(std::move(router)) {}

  const std::string& address() const { return server_.address(); }
  int calls() const { return calls_; }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    const int call = calls_++;
    if (call == 0) return grpc::Status(grpc::UNAVAILABLE, "shutting down");
    if (call == 1) return grpc::Status::OK;
    if (router_.empty()) return grpc::Status(grpc::PERMISSION_DENIED, "no");
    v1::Member* const member = response->add_members();
    member->set_role(v1::MEMBER_ROLE_ROUTER);
    member->set_address(router_);
    return grpc::Status::OK;
  }

 private:
  const std::string router_;
  std::atomic<int> calls_ = 0;
  UnixServer server_{this, v1::CoordinatorService::service_full_name()};
};

TEST(TranslateCommandTest, HasPatienceWithASystemThatStarts) {
  FakeRouter router;
  FakeStartingCoordinator coordinator(router.address());
  const CommandRun run(TranslateCommand,
                       {"a", "--coordinator", coordinator.address()});
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out, ":A\n");
  EXPECT_THAT(run.error, AllOf(StartsWith("gshard: waiting for up to "),
                               HasSubstr(": shutting down\n"),
                               HasSubstr("\ngshard: waiting for up to "),
                               HasSubstr(": the system has no router; see")));
  EXPECT_EQ(coordinator.calls(), 3);
}

// One client of the coordinator, and one of the routers, read it.
TEST(TranslateCommandTest, LooksForRoutersAgainWithoutReadingItsSecretAgain) {
  FakeRouter router;
  router.Refuse([](int call, const v1::TranslateRequest&) {
    return call == 0 ? absl::UnavailableError("restarted") : absl::OkStatus();
  });
  FakeStartingCoordinator coordinator(router.address());
  const ScratchFolder folder;
  const std::string token = folder.Write("token", std::string(32, 'a'));
  ASSERT_EQ(chmod(token.c_str(), 0644), 0);
  ::testing::internal::CaptureStderr();
  const CommandRun run(
      TranslateCommand,
      {"a", "--coordinator", coordinator.address(), "--token_file", token});
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(run.status);
  EXPECT_EQ(coordinator.calls(), 4);
  size_t warnings = 0;
  for (size_t at = log.find("a secret can be read"); at != std::string::npos;
       at = log.find("a secret can be read", at + 1)) {
    ++warnings;
  }
  EXPECT_EQ(warnings, 2u) << log;
}

TEST(TranslateCommandTest, PatienceEndsWithOtherErrors) {
  FakeStartingCoordinator coordinator("");
  const auto run = [&](const char* patience) {
    return CommandRun(TranslateCommand,
                      {"a", "--coordinator", coordinator.address(), patience})
        .status;
  };
  EXPECT_THAT(run("--patience=0s"), StatusIs(absl::StatusCode::kUnavailable,
                                             HasSubstr("shutting down")));
  EXPECT_THAT(run("--patience=1m"),
              StatusIs(absl::StatusCode::kPermissionDenied, "no"));
  EXPECT_EQ(coordinator.calls(), 3);
}

}  // namespace
}  // namespace gshard
