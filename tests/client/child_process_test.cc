#include "client/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/client/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kLong{60'000};

TEST(ChildProcessTest, TellsItsExitStatusAndLog) {
  const ScratchFolder folder;
  ASSERT_OK_AND_ASSIGN(
      const auto child,
      ChildProcess::Start("c",
                          {"/bin/sh", "-c", "echo out; echo err >&2; exit 3"},
                          folder.path() + "/log"));
  EXPECT_TRUE(child->WaitOrKill(kLong));
  EXPECT_EQ(child->Ended(), "exit status 3");
  EXPECT_FALSE(child->Succeeded());
  EXPECT_EQ(folder.Read("log"), "out\nerr\n");
  EXPECT_EQ(LastLines(folder.path() + "/log", 1), "err");
}

TEST(ChildProcessTest, ItsLogIsWhatItWroteItself) {
  const ScratchFolder folder;
  const auto run = [&folder](const std::string& script) {
    auto child = ChildProcess::Start("c", {"/bin/sh", "-c", script},
                                     folder.path() + "/log");
    EXPECT_OK(child.status());
    EXPECT_TRUE((*child)->WaitOrKill(kLong));
    return (*child)->LastLogLines(5);
  };
  EXPECT_EQ(run("echo first; echo more"), "first\nmore");
  EXPECT_EQ(run("echo second"), "second");
  EXPECT_EQ(run("true"), "");
  EXPECT_EQ(folder.Read("log"), "first\nmore\nsecond\n");
}

TEST(ChildProcessTest, EndsByItselfOnSigterm) {
  const ScratchFolder folder;
  // The shell prints "ready" once its SIGTERM handler is installed.
  ASSERT_OK_AND_ASSIGN(
      const auto child,
      ChildProcess::Start(
          "c",
          {"/bin/sh", "-c",
           "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"},
          folder.path() + "/log"));
  while (folder.Read("log").empty()) {
    ASSERT_FALSE(child->Ended().has_value());
  }
  child->Terminate();
  EXPECT_TRUE(child->WaitOrKill(kLong));
  EXPECT_TRUE(child->Succeeded());
}

TEST(ChildProcessTest, IsKilledWhenTheGraceIsOver) {
  const ScratchFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto child,
                       ChildProcess::Start("c", {"/bin/sh", "-c", "sleep 3600"},
                                           folder.path() + "/log"));
  EXPECT_FALSE(child->Ended().has_value());
  EXPECT_FALSE(child->WaitOrKill(milliseconds(0)));
  EXPECT_EQ(child->Ended(), "signal 9 (Killed)");
  EXPECT_TRUE(child->EndedBy(SIGKILL));
  EXPECT_FALSE(child->EndedBy(SIGTERM));
}

TEST(ChildProcessTest, SaysWhatIsMissing) {
  const ScratchFolder folder;
  EXPECT_THAT(ChildProcess::Start("c", {folder.path() + "/none"},
                                  folder.path() + "/log"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
  EXPECT_THAT(ChildProcess::Start("c", {"/bin/sh"}, folder.path() + "/a/log"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/a/log: No such file")));
  EXPECT_EQ(LastLines(folder.path() + "/none", 3), "");
}

}  // namespace
}  // namespace gshard
