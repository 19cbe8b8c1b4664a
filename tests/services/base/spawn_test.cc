#include "services/base/spawn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

int StatusOfEnd(pid_t pid) {
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

SpawnOptions ToStandardError() {
  return {.output = STDERR_FILENO, .error = STDERR_FILENO};
}

TEST(SpawnTest, RunsAProgramAlongPath) {
  ASSERT_OK_AND_ASSIGN(const pid_t pid,
                       Spawn({"sh", "-c", "exit 3"}, ToStandardError()));
  EXPECT_EQ(WEXITSTATUS(StatusOfEnd(pid)), 3);
}

TEST(SpawnTest, SaysWhyAProgramCannotRun) {
  EXPECT_THAT(Spawn({"/no-such-program"}, ToStandardError()),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no program /no-such-program")));
  EXPECT_THAT(Spawn({"/"}, ToStandardError()),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("cannot start /: Permission denied")));
  // A failed spawn leaves no child to wait for.
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

// If the parent is killed, the kernel sends its children their death signal.
TEST(SpawnTest, AProgramEndsWithTheProcessThatStartedIt) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    // Orphans become children of this process, which can then wait for them.
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    int started[2];
    ASSERT_EQ(pipe(started), 0);
    const std::vector<std::string> program = {
        "sh", "-c", absl::StrCat("echo >&", started[1], "; exec sleep 60")};
    SpawnOptions options = ToStandardError();
    options.death_signal = signal;
    const pid_t parent = fork();
    if (parent == 0) {
      const auto child = Spawn(program, options);
      if (child.ok()) waitpid(*child, nullptr, 0);
      _exit(1);
    }
    char byte = 0;
    ASSERT_EQ(read(started[0], &byte, 1), 1);
    ASSERT_EQ(kill(parent, SIGKILL), 0);
    EXPECT_EQ(WTERMSIG(StatusOfEnd(parent)), SIGKILL);
    int status = -1;
    EXPECT_GT(waitpid(-1, &status, 0), 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    close(started[0]);
    close(started[1]);
  }
}

}  // namespace
}  // namespace gshard
