#include "services/base/subprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <stop_token>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(SubprocessTest, ReturnsWhatTheProgramSays) {
  ASSERT_OK_AND_ASSIGN(
      const SubprocessResult result,
      RunSubprocess({"sh", "-c", "echo out; echo err >&2; exit 3"}));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.error_output, "err\n");
}

TEST(SubprocessTest, PassesArgumentsAsTheyAre) {
  ASSERT_OK_AND_ASSIGN(const SubprocessResult result,
                       RunSubprocess({"printf", "%s|", "a b", "$HOME;", "*"}));
  EXPECT_EQ(result.output, "a b|$HOME;|*|");
}

TEST(SubprocessTest, SetsEnvironmentAndFolder) {
  SubprocessOptions options;
  options.environment = {"HOME=/there", "NEW=x"};
  options.working_directory = "/";
  ASSERT_OK_AND_ASSIGN(
      const SubprocessResult result,
      RunSubprocess({"sh", "-c", "echo $HOME $NEW $PWD ${PATH:+path}"},
                    options));
  EXPECT_EQ(result.output, "/there x / path\n");
}

TEST(SubprocessTest, StandardInputIsEmpty) {
  ASSERT_OK_AND_ASSIGN(const SubprocessResult result, RunSubprocess({"cat"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, "");
}

// Output beyond the pipes' size, on both streams at once, does not deadlock.
TEST(SubprocessTest, TakesLongOutput) {
  ASSERT_OK_AND_ASSIGN(
      const SubprocessResult result,
      RunSubprocess({"sh", "-c",
                     "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero "
                     ">&2; wait; echo last >&2"}));
  EXPECT_EQ(result.output.size(), 3000000u);
  EXPECT_EQ(result.error_output.size(), 8192u);
  EXPECT_THAT(result.error_output, HasSubstr("last\n"));
}

TEST(SubprocessTest, StopsAProgramThatSaysTooMuch) {
  SubprocessOptions options;
  options.max_output_bytes = 1000;
  EXPECT_THAT(RunSubprocess({"yes"}, options),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("yes wrote over 1000 bytes")));
}

TEST(SubprocessTest, KillsAProgramWhenToldTo) {
  std::stop_source stop;
  SubprocessOptions options;
  options.stop = stop.get_token();
  int started[2];
  ASSERT_EQ(pipe(started), 0);
  std::jthread stopper([&] {
    char byte = 0;
    EXPECT_EQ(read(started[0], &byte, 1), 1);
    stop.request_stop();
  });
  // The program closes its output, so RunSubprocess waits only for its exit.
  EXPECT_THAT(
      RunSubprocess({"sh", "-c",
                     absl::StrCat("exec >/dev/null 2>&1; echo >&", started[1],
                                  "; exec sleep 3600")},
                    options),
      StatusIs(absl::StatusCode::kCancelled, HasSubstr("sh was told to stop")));
  EXPECT_THAT(RunSubprocess({"sleep", "3600"}, options),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("before")));
  close(started[0]);
  close(started[1]);
}

TEST(SubprocessTest, TellsOfSignals) {
  ASSERT_OK_AND_ASSIGN(const SubprocessResult result,
                       RunSubprocess({"sh", "-c", "kill -9 $$"}));
  EXPECT_EQ(result.exit_code, 128 + 9);
}

TEST(SubprocessTest, NamesAMissingProgram) {
  EXPECT_THAT(
      RunSubprocess({"no-such-program"}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such-program")));
}

}  // namespace
}  // namespace gshard
