#include "services/config/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A command with one flag of each type.
class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() {
    flags_.Integer("beam", &beam_, 1, 64, "hypotheses kept for each sentence");
    flags_.Real("length_penalty", &penalty_, Interval::Closed(0, 10),
                "exponent of the length");
    flags_.Bool("follow", &follow_, "print progress until the job is done");
    flags_.Text("listen", &listen_, "HOST:PORT", "address to serve at");
    flags_.Choice("role", &role_, {"router", "worker"}, "what to be");
    flags_.List("languages", &languages_, "CODE", "languages to accept");
    flags_.Duration("deadline", &deadline_, "time for one call");
    flags_.Positional("TEXT", 0, 2, "sentences to translate");
    flags_.Example("gshard translate --beam=1 'Guten Tag'");
  }

  absl::StatusOr<Flags::Result> Parse(std::vector<std::string> arguments) {
    return flags_.Parse(arguments, [this](const char* name) -> const char* {
      const auto found = environment_.find(name);
      return found == environment_.end() ? nullptr : found->second.c_str();
    });
  }

  int64_t beam_ = 4;
  double penalty_ = 0.6;
  bool follow_ = false;
  std::string listen_ = "0.0.0.0:8000";
  std::string role_ = "router";
  std::vector<std::string> languages_ = {"de"};
  absl::Duration deadline_ = absl::Seconds(10);
  std::map<std::string, std::string> environment_;
  Flags flags_{"gshard translate", "Translates sentences into English."};
};

TEST_F(FlagsTest, NoticesMisspeltVariables) {
  const char* const environment[] = {
      "GSHARD_BEAM=2",                     // is read
      "GSHARD_BAEM=2",                     // two letters
      "GSHARD_LENGHT_PENALTY=1",           //
      "GSHARD_LISTEN_ADDRESS=:1",          // too far
      "GSHARD_ROUTER_SERVICE_HOST=::1",    // of Kubernetes
      "GSHARD_LISTEN_PORT_7000_TCP_PORT",  // and without a value
      "BAEM=GSHARD_BAEM=2",
      nullptr};
  EXPECT_THAT(
      flags_.Misspelt(environment),
      ElementsAre(Pair("GSHARD_BAEM", "GSHARD_BEAM"),
                  Pair("GSHARD_LENGHT_PENALTY", "GSHARD_LENGTH_PENALTY")));
  // "models" is a flag of another program.
  std::string model;
  flags_.Text("model", &model, "NAME", "the model");
  const char* const models[] = {"GSHARD_MODELS=a", "GSHARD_MODELL=a", nullptr};
  EXPECT_THAT(flags_.Misspelt(models),
              ElementsAre(Pair("GSHARD_MODELL", "GSHARD_MODEL")));
}

TEST_F(FlagsTest, KeepsDefaultsWhenNothingIsSaid) {
  ASSERT_OK_AND_ASSIGN(const Flags::Result result, Parse({}));
  EXPECT_FALSE(result.help);
  EXPECT_THAT(result.positional, IsEmpty());
  EXPECT_EQ(beam_, 4);
  EXPECT_EQ(listen_, "0.0.0.0:8000");
}

TEST_F(FlagsTest, ReadsEveryTypeInBothForms) {
  ASSERT_OK_AND_ASSIGN(
      const Flags::Result result,
      Parse({"--beam", "8", "--length_penalty=1.5", "--follow", "one",
             "--listen", "[::1]:80", "--role=worker", "--languages=de,pt_BR",
             "--deadline=1m30s", "--", "--beam"}));
  EXPECT_EQ(beam_, 8);
  EXPECT_EQ(penalty_, 1.5);
  EXPECT_TRUE(follow_);
  EXPECT_EQ(listen_, "[::1]:80");
  EXPECT_EQ(role_, "worker");
  EXPECT_THAT(languages_, ElementsAre("de", "pt_BR"));
  EXPECT_EQ(deadline_, absl::Seconds(90));
  EXPECT_THAT(result.positional, ElementsAre("one", "--beam"));
  ASSERT_OK(Parse({"--deadline=87600h"}));
  EXPECT_EQ(deadline_, absl::Hours(87600));
}

TEST_F(FlagsTest, TakesASingleDashForAnArgument) {
  ASSERT_OK_AND_ASSIGN(const Flags::Result result, Parse({"-"}));
  EXPECT_THAT(result.positional, ElementsAre("-"));
}

TEST_F(FlagsTest, SwitchesBooleansOff) {
  follow_ = true;
  ASSERT_OK(Parse({"--no-follow"}));
  EXPECT_FALSE(follow_);
  ASSERT_OK(Parse({"--follow=true"}));
  EXPECT_TRUE(follow_);
  ASSERT_OK(Parse({"--follow=false"}));
  EXPECT_FALSE(follow_);
}

TEST_F(FlagsTest, PrefersFlagsToEnvironmentToDefaults) {
  environment_ = {{"GSHARD_BEAM", "2"}, {"GSHARD_LENGTH_PENALTY", "0.25"}};
  ASSERT_OK(Parse({"--beam=3"}));
  EXPECT_EQ(beam_, 3);
  EXPECT_EQ(penalty_, 0.25);
  EXPECT_EQ(listen_, "0.0.0.0:8000");
}

struct BadArguments {
  std::vector<std::string> arguments;
  const char* message;
};

TEST_F(FlagsTest, NamesTheFlagTheValueAndWhatWasExpected) {
  const BadArguments cases[] = {
      {{"--beam=0"}, "--beam: expected a whole number, 1 to 64, got \"0\""},
      {{"--beam=4x"}, "--beam: expected a whole number, 1 to 64, got \"4x\""},
      {{"--beam="}, "--beam: expected a whole number, 1 to 64, got \"\""},
      {{"--beam"}, "--beam: expected a value, got nothing"},
      {{"--listen", "--follow"}, "--listen: expected a value, got nothing"},
      {{"--length_penalty=nan"},
       "--length_penalty: expected a number, 0 to 10, got \"nan\""},
      {{"--follow=1"}, "--follow: expected true or false, got \"1\""},
      {{"--role=boss"}, "--role: expected router or worker, got \"boss\""},
      {{"--languages=de,,fr"},
       "--languages: expected items with one comma between two, got "
       "\"de,,fr\""},
      {{"--deadline=-1s"},
       "--deadline: expected a duration such as 1.5s, 200ms or 2h, at most "
       "87600h, got \"-1s\""},
      {{"--deadline=87600h1ns"},
       "--deadline: expected a duration such as 1.5s, 200ms or 2h, at most "
       "87600h, got \"87600h1ns\""},
      {{"--deadline=inf"},
       "--deadline: expected a duration such as 1.5s, 200ms or 2h, at most "
       "87600h, got \"inf\""},
      {{"a", "b", "c"}, "TEXT: expected at most two, got 3"},
  };
  for (const BadArguments& bad : cases) {
    EXPECT_THAT(Parse(bad.arguments),
                StatusIs(absl::StatusCode::kInvalidArgument, bad.message));
  }
}

TEST_F(FlagsTest, NamesTheEnvironmentVariableThatIsWrong) {
  environment_ = {{"GSHARD_BEAM", "many"}};
  EXPECT_THAT(
      Parse({}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "GSHARD_BEAM: expected a whole number, 1 to 64, got \"many\""));
}

TEST_F(FlagsTest, SuggestsTheNearestFlagForAnUnknownOne) {
  const auto unknown = [](const char* rest) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(rest));
  };
  EXPECT_THAT(Parse({"--baem=2"}),
              unknown("unknown flag --baem of gshard translate; did you mean "
                      "--beam?"));
  EXPECT_THAT(Parse({"--lenth-penalty=2"}),
              unknown("did you mean --length_penalty?"));
  EXPECT_THAT(Parse({"-beam=2"}), unknown("did you mean --beam?"));
  EXPECT_THAT(Parse({"--no-beam"}), unknown("unknown flag --no-beam"));
  EXPECT_THAT(Parse({"--zzzzzzzzz"}), unknown("see gshard translate --help"));
}

TEST_F(FlagsTest, TakesDashesForUnderscoresButSaysUnderscores) {
  EXPECT_OK(Parse({"--length-penalty=2"}));
  EXPECT_THAT(Parse({"--length-penalty=-1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--length_penalty: ")));
  EXPECT_DEATH(flags_.Bool("dry-run", &follow_, "does nothing"), "'-'");
}

TEST_F(FlagsTest, SaysHowManyArgumentsItTakes) {
  const auto refusal = [](int least, int most,
                          const std::vector<std::string>& arguments) {
    Flags flags("gshard watch", "Follows a job.");
    flags.Positional("JOB", least, most, "the job's name");
    return std::string(flags.Parse(arguments).status().message());
  };
  EXPECT_EQ(refusal(1, 1, {}), "JOB: expected one, got none");
  EXPECT_EQ(refusal(1, 1, {"a", "b"}), "JOB: expected one, got 2");
  EXPECT_EQ(refusal(2, 2, {"a"}), "JOB: expected two, got 1");
  EXPECT_EQ(refusal(1, 2, {}), "JOB: expected one or two, got none");
  EXPECT_EQ(refusal(1, 5, {}), "JOB: expected one to 5, got none");
  EXPECT_EQ(refusal(1, std::numeric_limits<int>::max(), {}),
            "JOB: expected at least one, got none");
}

TEST_F(FlagsTest, InsistsOnRequiredFlags) {
  flags_.Require("listen");
  EXPECT_THAT(Parse({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("--listen: expected a value")));
  ASSERT_OK(Parse({"--listen=localhost:1"}));
  EXPECT_THAT(flags_.Help(), HasSubstr("(required)"));
}

TEST_F(FlagsTest, TakesNoArgumentsUnlessDeclared) {
  Flags flags("gshard describe", "Says who holds what.");
  const std::vector<std::string> arguments = {"now"};
  EXPECT_THAT(flags.Parse(arguments),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "expected no arguments but flags, got \"now\""));
}

TEST_F(FlagsTest, ForMainPrintsWhatEndsIt) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(flags_.ParseOrExit({"--listen=localhost:1"}), std::nullopt);
  EXPECT_EQ(flags_.ParseOrExit({"--help"}), 0);
  EXPECT_EQ(flags_.ParseOrExit({"--nonsense"}), 2);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), flags_.Help());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("unknown flag --nonsense"));
}

TEST_F(FlagsTest, AProgramPrintsItsVersion) {
  EXPECT_EQ(flags_.ParseOrExit({"--version"}), 2);  // of a command
  flags_.Version("1.2.3");
  testing::internal::CaptureStdout();
  EXPECT_EQ(flags_.ParseOrExit({"--nonsense", "--version"}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "gshard 1.2.3\n");
  EXPECT_THAT(flags_.Help(),
              HasSubstr("  --version             print the version\n"));
}

TEST_F(FlagsTest, HelpWinsOverMistakes) {
  ASSERT_OK_AND_ASSIGN(const Flags::Result result,
                       Parse({"--nonsense", "--help"}));
  EXPECT_TRUE(result.help);
  ASSERT_OK_AND_ASSIGN(const Flags::Result after, Parse({"--", "--help"}));
  EXPECT_FALSE(after.help);
}

TEST_F(FlagsTest, HelpIsAlignedAndComplete) {
  const std::string help = flags_.Help();
  EXPECT_EQ(help,
            "Translates sentences into English.\n"
            "\n"
            "Usage: gshard translate [flags] TEXT\n"
            "\n"
            "  TEXT                  sentences to translate\n"
            "\n"
            "Flags:\n"
            "  --beam=N              hypotheses kept for each sentence (1 to "
            "64; default 4)\n"
            "  --length_penalty=X    exponent of the length (0 to 10; default "
            "0.6)\n"
            "  --follow              print progress until the job is done "
            "(default false)\n"
            "  --listen=HOST:PORT    address to serve at (default "
            "0.0.0.0:8000)\n"
            "  --role=CHOICE         what to be (router or worker; default "
            "router)\n"
            "  --languages=CODE,...  languages to accept (default de)\n"
            "  --deadline=DURATION   time for one call (at most 87600h; "
            "default 10s)\n"
            "  --help                print this page\n"
            "\n"
            "A flag left out is read from the environment, --beam from "
            "GSHARD_BEAM; else it\n"
            "has its default.\n"
            "\n"
            "Example:\n"
            "  gshard translate --beam=1 'Guten Tag'\n");
}

TEST_F(FlagsTest, HelpWrapsLongLinesAtEightyColumns) {
  bool value = false;
  flags_.Bool("a_flag_with_a_name_that_is_wider_than_its_column", &value,
              "does something that takes more than one line of eighty columns "
              "to explain to the reader");
  std::istringstream lines(flags_.Help());
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

}  // namespace
}  // namespace gshard
