#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/commands.h"
#include "client/local_system.h"
#include "tests/client/command_run.h"
#include "tests/client/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(UpCommandTest, HelpExplainsItself) {
  const CommandRun run(UpCommand, {"--help"});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, AllOf(HasSubstr("--processes"), HasSubstr("--directory"),
                             HasSubstr("gshard up --processes --routers 2")));
}

TEST(UpCommandTest, WrongCallsStartNothing) {
  EXPECT_TRUE(IsUsageError(CommandRun(UpCommand, {"--routers=0"}).status));
  EXPECT_THAT(CommandRun(UpCommand, {"--models=demo"}).status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--models: expected NAME=CHECKPOINT, got \"demo\""));
  EXPECT_THAT(
      CommandRun(UpCommand, {"--directory=/tmp/" + std::string(120, 'x')})
          .status,
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("107")));
}

// A program that dies is reported with its exit status and its log.
TEST(UpCommandTest, ReportsAProcessThatDies) {
  const ScratchFolder folder;
  const std::string wait_for_term =
      "#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 0.05; done\n";
  folder.Write("gshard_coordinator", wait_for_term, true);
  folder.Write("gshard_expert_worker", wait_for_term, true);
  folder.Write("gshard_router", "#!/bin/sh\necho out of luck >&2\nexit 7\n",
               true);
  const CommandRun run(UpCommand,
                       {"--processes", "--program_directory", folder.path(),
                        "--directory", folder.path() + "/run"});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kAborted,
                                   AllOf(HasSubstr("router-0 (process "),
                                         HasSubstr("ended with exit status 7"),
                                         HasSubstr("out of luck"))));
  EXPECT_THAT(run.out, HasSubstr("stopped\n"));
}

TEST(UpCommandTest, RoutersTakeGpusInTurns) {
  const ScratchFolder folder;
  const std::string wait_for_term =
      "trap 'exit 0' TERM\nwhile :; do sleep 0.05; done\n";
  folder.Write("gshard_coordinator", "#!/bin/sh\n" + wait_for_term, true);
  folder.Write("gshard_expert_worker", "#!/bin/sh\n" + wait_for_term, true);
  folder.Write("gshard_router",
               "#!/bin/sh\ncase \"$*\" in *--name=router-1*)\n"
               "for word; do case $word in --device*) echo $word >&2;; "
               "esac; done; exit 7;; esac\n" +
                   wait_for_term,
               true);
  const CommandRun run(UpCommand,
                       {"--processes", "--routers=2", "--device=cuda:0,cuda:1",
                        "--program_directory", folder.path(), "--directory",
                        folder.path() + "/run"});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kAborted,
                                   AllOf(HasSubstr("router-1 (process "),
                                         HasSubstr("--device=cuda:1"))));
}

TEST(UpCommandTest, ProcessesUseItsObjectStore) {
  const ScratchFolder folder;
  folder.Write("gshard_coordinator", "#!/bin/sh\necho $* >&2\nexit 7\n", true);
  folder.Write("gshard_router", "#!/bin/sh\nexec sleep 60\n", true);
  folder.Write("gshard_expert_worker", "#!/bin/sh\nexec sleep 60\n", true);
  const CommandRun run(
      UpCommand, {"--processes", "--insecure", "--s3_endpoint=http://10.0.0.1",
                  "--s3_region=here", "--program_directory", folder.path(),
                  "--directory", folder.path() + "/run"});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kAborted,
                                   HasSubstr("--s3_endpoint=http://10.0.0.1 "
                                             "--s3_region=here --insecure")));
}

TEST(UpCommandTest, NcclNeedsAGpuForEachRouter) {
  for (const char* devices : {"", "cuda:0", "cuda:0,cuda:0"}) {
    EXPECT_THAT(
        CommandRun(UpCommand, {"--processes", "--routers=2", "--reduce=nccl",
                               absl::StrCat("--device=", devices)})
            .status,
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("a GPU for each of the 2 routers")));
  }
}

TEST(UpCommandTest, SaysWhichProgramIsMissing) {
  const ScratchFolder folder;
  EXPECT_THAT(CommandRun(UpCommand, {"--processes", "--program_directory=/none",
                                     "--directory", folder.path()})
                  .status,
              StatusIs(absl::StatusCode::kNotFound,
                       "no program /none/gshard_coordinator"));
}

TEST(LocalSystemTest, GivesEveryMemberItsAddresses) {
  const std::vector<LocalMember> members =
      LocalMembers({.directory = "/d",
                    .routers = 2,
                    .workers = 1,
                    .metrics_port_base = 9464});
  ASSERT_EQ(members.size(), 4u);
  EXPECT_EQ(members[0].name, "coordinator");
  EXPECT_EQ(members[0].address, "unix:/d/coordinator.sock");
  EXPECT_EQ(members[2].name, "router-1");
  EXPECT_EQ(members[3].address, "unix:/d/worker-0.sock");
  EXPECT_EQ(members[3].metrics_address, "127.0.0.1:9467");
}

}  // namespace
}  // namespace gshard
