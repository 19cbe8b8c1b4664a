#include "client/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "services/base/log.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status Greet(Arguments arguments, Console& console) {
  Flags flags("gshard greet", "Says hello.");
  std::string name = "you";
  flags.Text("name", &name, "NAME", "whom to greet");
  flags.Example("gshard greet --name Ada");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  *console.out << "hello " << name << "\n";
  return absl::OkStatus();
}

absl::Status Fail(Arguments, Console&) {
  return absl::NotFoundError("nobody is there");
}

struct Outcome {
  int code;
  std::string out;
  std::string error;
};

Outcome RunGshard(const std::vector<std::string>& arguments) {
  const std::vector<Command> commands = {{"greet", "says hello", Greet},
                                         {"wave off", "sends away", Fail},
                                         {"fail", "does not work", Fail}};
  std::ostringstream out, error;
  Console console{-1, &out, &error,
                  [](const char*) -> const char* { return nullptr; }};
  const int code = Dispatch(commands, arguments, console);
  return {code, out.str(), error.str()};
}

TEST(DispatchTest, RunsACommandWithItsArguments) {
  const Outcome outcome = RunGshard({"greet", "--name", "Ada"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "hello Ada\n");
  EXPECT_EQ(outcome.error, "");
}

TEST(DispatchTest, OutputThatIsLostIsAnError) {
  const std::vector<Command> commands = {{"greet", "says hello", Greet}};
  std::ofstream full("/dev/full");
  std::ostringstream error;
  Console console{-1, &full, &error,
                  [](const char*) -> const char* { return nullptr; }};
  EXPECT_EQ(Dispatch(commands, std::vector<std::string>{"greet"}, console), 1);
  EXPECT_THAT(error.str(), HasSubstr("resource_exhausted: the output could"));
}

// As `gshard ... | head` once head has ended, of a command that does not let
// SIGPIPE end it, since it has to clean up.
TEST(DispatchDeathTest, AReaderThatHasGoneIsNoFullDisk) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto greet = [] {
    signal(SIGPIPE, SIG_IGN);
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) exit(1);
    close(ends[0]);
    const std::vector<Command> commands = {{"greet", "says hello", Greet}};
    Console console{-1, &std::cout, &std::cerr,
                    [](const char*) -> const char* { return nullptr; }};
    exit(Dispatch(commands, std::vector<std::string>{"greet"}, console));
  };
  EXPECT_EXIT(greet(), ::testing::ExitedWithCode(128 + SIGPIPE),
              ::testing::Eq(""));
}

TEST(DispatchTest, PrintsErrorsWithTheirCode) {
  const Outcome outcome = RunGshard({"fail"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.error, "gshard: not_found: nobody is there\n");
  EXPECT_EQ(RunGshard({"wave", "off"}).code, 1);
}

TEST(DispatchTest, WrongCallsEndWithTwo) {
  const Outcome outcome = RunGshard({"greet", "--nmae=Ada"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("gshard: invalid_argument: "),
                                   HasSubstr("did you mean --name?")));
  EXPECT_EQ(RunGshard({"greet", "stray"}).code, 2);
}

TEST(DispatchTest, SuggestsTheNearestCommand) {
  const Outcome outcome = RunGshard({"greeet"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("did you mean `gshard greet`?"));
  EXPECT_THAT(RunGshard({"wave"}).error,
              HasSubstr(": expected one of `gshard wave off`, got `gshard "
                        "wave`\n"));
  EXPECT_THAT(
      RunGshard({"wave", "of"}).error,
      HasSubstr("got `gshard wave of`; did you mean `gshard wave off`"));
  EXPECT_THAT(RunGshard({"something"}).error, HasSubstr("see `gshard --help`"));
}

TEST(DispatchTest, HelpListsCommandsAndExplainsOne) {
  for (const char* word : {"help", "--help", "-h"}) {
    const Outcome outcome = RunGshard({word});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("greet"), HasSubstr("wave off"),
                                   HasSubstr("says hello")));
  }
  for (const auto& asked : std::vector<std::vector<std::string>>{
           {"help", "greet"}, {"greet", "--help"}}) {
    const Outcome outcome = RunGshard(asked);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("gshard greet --name Ada"));
  }
}

TEST(DispatchTest, AFirstWordAloneIsExplainedByWhatFollowsIt) {
  for (const auto& asked : std::vector<std::vector<std::string>>{
           {"wave", "--help"}, {"wave", "-h"}, {"help", "wave"}}) {
    const Outcome outcome = RunGshard(asked);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("Usage: gshard wave COMMAND"),
                                   HasSubstr("wave off  sends away"),
                                   ::testing::Not(HasSubstr("greet"))));
    EXPECT_EQ(outcome.error, "");
  }
  EXPECT_EQ(RunGshard({"wave"}).code, 2);
  EXPECT_EQ(RunGshard({"wave", "on", "--help"}).code, 2);
  EXPECT_EQ(RunGshard({"wav", "--help"}).code, 2);
}

TEST(DispatchTest, NoCommandIsAWrongCall) {
  const Outcome outcome = RunGshard({});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("Usage: gshard COMMAND"));
}

absl::Status Warn(Arguments, Console&) {
  LogInfo("all is well");
  LogWarning("a file is odd", {{"file", "/a"}});
  return absl::OkStatus();
}

TEST(DispatchTest, WarningsAreLinesForAPerson) {
  const std::vector<Command> commands = {{"warn", "warns", Warn}};
  std::ostringstream out, error;
  Console console{-1, &out, &error,
                  [](const char*) -> const char* { return nullptr; }};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Dispatch(commands, std::vector<std::string>{"warn"}, console), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "gshard: warning: a file is odd: file=\"/a\"\n");
}

TEST(DispatchTest, KnowsItsVersion) {
  EXPECT_THAT(RunGshard({"--version"}).out, ::testing::StartsWith("gshard 0."));
}

}  // namespace
}  // namespace gshard
