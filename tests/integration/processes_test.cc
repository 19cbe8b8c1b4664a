// `gshard up` in one process and with one process per role gives the same
// translations and stops on request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/child_process.h"
#include "client/coordinator_client.h"
#include "client/system_layout.h"
#include "services/base/subprocess.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/integration/temporary_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

// A system started by `gshard up`, which tests stop at the end.
class System {
 public:
  System(const std::string& directory, std::vector<std::string> flags)
      : directory_(directory) {
    std::vector<std::string> argv = {Gshard(),      "up",        "--routers",
                                     "1",           "--workers", "2",
                                     "--directory", directory_};
    argv.insert(argv.end(), flags.begin(), flags.end());
    auto up = ChildProcess::Start("up", argv, directory_ + ".log");
    EXPECT_TRUE(up.ok()) << up.status();
    if (up.ok()) up_ = *std::move(up);
  }

  // Returns once the log names the members that are started.
  void AwaitMembers() {
    while (!absl::StrContains(LastLines(up_->log_path(), 20), "worker-1")) {
      ASSERT_FALSE(up_->Ended().has_value()) << *up_->Ended();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // SIGTERM ends the system without an error.
  void Stop() {
    ASSERT_NE(up_, nullptr);
    up_->Terminate();
    EXPECT_TRUE(up_->WaitOrKill(std::chrono::seconds(60)))
        << LastLines(up_->log_path(), 20);
    EXPECT_TRUE(up_->Succeeded()) << LastLines(up_->log_path(), 20);
  }

  // Runs a command against the system; returns its standard output.
  std::string Run(const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {Gshard()};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const auto result =
        RunSubprocess(argv, {.environment = {"GSHARD_DIRECTORY=" + directory_},
                             .working_directory = {}});
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return "";
    EXPECT_EQ(result->exit_code, 0) << result->output << result->error_output;
    return result->output;
  }

  // The progress of the job.
  v1::JobProgress Progress() {
    const auto coordinator = CoordinatorClient::Create(
        SystemLayout(directory_).Address("coordinator"));
    EXPECT_OK(coordinator.status());
    const auto jobs = (*coordinator)->ListJobs("names", /*history=*/false);
    EXPECT_OK(jobs.status());
    return jobs.ok() ? jobs->jobs(0).progress() : v1::JobProgress();
  }

  std::string Translate() {
    return Run({"translate", "--model", "names", "--from", "de", "--beam", "3",
                "--n_best", "2", "--json", "Deutschland", "Vereinigte Staaten",
                "Euro"});
  }

 private:
  static std::string Gshard() {
    return std::string(GSHARD_PROGRAMS) + "/gshard";
  }

  const std::string directory_;
  std::unique_ptr<ChildProcess> up_;
};

TEST(ProcessesTest, EmbeddedAndSeparateProcessesTranslateAlike) {
  const TemporaryDirectory directory;
  TrainingJob job = NamesJob(directory.path() + "/checkpoints");
  job.steps = 20;
  job.min_workers = 2;
  job.serve_as = "names";
  const std::string job_path = directory.path() + "/job.textproto";
  std::ofstream(job_path) << TrainingJobToText(job);

  System embedded(directory.path() + "/a", {});
  embedded.Run({"wait", "--routers", "1", "--workers", "2"});
  embedded.Run({"train", job_path, "--follow"});
  embedded.Run({"wait", "--model", "names"});
  const std::string translations = embedded.Translate();
  EXPECT_THAT(translations, ::testing::HasSubstr("hypotheses"));
  ASSERT_NO_FATAL_FAILURE(embedded.Stop());

  ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                       LatestCheckpoint(job.checkpoint.directory));
  System separate(directory.path() + "/b",
                  {"--processes", "--models", "names=" + checkpoint});
  separate.Run({"wait", "--model", "names"});
  EXPECT_EQ(separate.Translate(), translations);
  // This system does not know the job, but sees that it is done.
  EXPECT_EQ(separate.Run({"train", job_path, "--follow", "--resume"}), "");
  ASSERT_NO_FATAL_FAILURE(separate.Stop());
}

TEST(ProcessesTest, TheNextSystemKnowsTheJobsOfTheOneBefore) {
  const TemporaryDirectory directory;
  TrainingJob job = NamesJob(directory.path() + "/checkpoints");
  job.min_workers = 2;
  const std::string job_path = directory.path() + "/job.textproto";
  std::ofstream(job_path) << TrainingJobToText(job);
  const std::string state = "--state_directory=" + directory.path() + "/state";

  System embedded(directory.path() + "/a", {state});
  embedded.Run({"wait", "--routers", "1", "--workers", "2"});
  embedded.Run({"train", job_path, "--follow"});
  // Following a finished job again reports that it succeeded.
  embedded.Run({"train", job_path, "--follow", "--resume"});
  const std::string jobs = embedded.Run({"jobs", "--history"});
  EXPECT_THAT(jobs, ::testing::HasSubstr("succeeded"));
  ASSERT_NO_FATAL_FAILURE(embedded.Stop());

  System separate(directory.path() + "/b", {"--processes", state});
  separate.Run({"wait", "--routers", "1", "--workers", "2"});
  EXPECT_EQ(separate.Run({"jobs", "--history"}), jobs);
  ASSERT_NO_FATAL_FAILURE(separate.Stop());
}

// Only the stop makes the job write a checkpoint.
TEST(ProcessesTest, AJobGoesOnFromWhereTheSystemWasStopped) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--processes"}}) {
    const TemporaryDirectory directory;
    TrainingJob job = NamesJob(directory.path() + "/checkpoints");
    job.min_workers = 2;
    job.steps = 1'000'000;
    const std::string job_path = directory.path() + "/job.textproto";
    std::ofstream(job_path) << TrainingJobToText(job);
    std::vector<std::string> all = flags;
    all.push_back("--state_directory=" + directory.path() + "/state");

    System system(directory.path() + "/a", all);
    system.Run({"wait", "--routers", "1", "--workers", "2"});
    system.Run({"train", job_path});
    ASSERT_TRUE(Eventually([&] { return system.Progress().step() >= 3; }));
    ASSERT_NO_FATAL_FAILURE(system.Stop());
    ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                         LatestCheckpoint(job.checkpoint.directory));
    ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(checkpoint));
    EXPECT_GE(reader->manifest().step, 3);

    System next(directory.path() + "/b", all);
    next.Run({"wait", "--routers", "1", "--workers", "2"});
    ASSERT_TRUE(Eventually([&] {
      return next.Progress().state() == v1::JOB_STATE_RUNNING &&
             next.Progress().step() > 0;
    }));
    EXPECT_GE(next.Progress().step(), reader->manifest().step);
    ASSERT_NO_FATAL_FAILURE(next.Stop());
  }
}

TEST(ProcessesTest, AStopWhileMembersStartIsNoFailure) {
  const TemporaryDirectory directory;
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--processes"}}) {
    System system(absl::StrCat(directory.path(), "/", flags.size()), flags);
    ASSERT_NO_FATAL_FAILURE(system.AwaitMembers());
    ASSERT_NO_FATAL_FAILURE(system.Stop());
  }
}

}  // namespace
}  // namespace gshard
