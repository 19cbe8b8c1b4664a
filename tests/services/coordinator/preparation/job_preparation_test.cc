// The slow preparation of a job's first step, and what continues meanwhile.

#include "services/coordinator/preparation/job_preparation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

absl::StatusOr<PreparedJob> ClaimAndPrepare(const TrainingJob& job,
                                            const JobIntent& intent,
                                            std::stop_token stop = {}) {
  ASSIGN_OR_RETURN(const auto claim, ClaimFolder(job, intent));
  return PrepareJob(job, intent, *claim, stop);
}

// Puts a program spm_train that takes hours into PATH.
class SlowTrainer {
 public:
  SlowTrainer() {
    FakeTokenizerPath();  // made with the real spm_train
    const std::string program = scratch_ / "spm_train";
    Spill(program, "#!/bin/sh\necho $$ > " + scratch_ / "new" + "\nmv " +
                       scratch_ / "new " + scratch_ / "pid" +
                       "\nexec sleep 36000\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    ::setenv("PATH", (scratch_.path() + ":" + path_).c_str(), 1);
  }
  ~SlowTrainer() { ::setenv("PATH", path_.c_str(), 1); }

  // Changes a job so that it needs a tokenizer to be trained.
  static TrainingJob Needing(TrainingJob job) {
    job.data.source_tokenizer_path = "";
    return job;
  }

  void WaitUntilItRuns() {
    while (!std::filesystem::exists(scratch_ / "pid")) {
      std::this_thread::yield();
    }
    std::ifstream(scratch_ / "pid") >> process_;
    ASSERT_GT(process_, 0);
  }
  int niceness() const {
    return ::getpriority(PRIO_PROCESS, static_cast<id_t>(process_));
  }
  void WaitUntilItIsGone() const {
    while (::kill(process_, 0) == 0) std::this_thread::yield();
  }

 private:
  const std::string path_ = ::getenv("PATH");
  const ScratchDirectory scratch_;
  pid_t process_ = 0;
};

TEST(JobPreparationTest, RemovesWhatAKilledCoordinatorLeft) {
  const ScratchDirectory scratch;
  const TrainingJob job = MakeFakeJob("demo", scratch);
  const std::string root = job.checkpoint.directory;
  std::filesystem::create_directories(root + "/tokenizer");
  for (const char* name :
       {"/owner.json.1f09a2c4.tmp", "/tokenizer/source.model.1f09a2c4.tmp",
        "/tokenizer/source.model.1f09a2c4.tmp.training-Xb3d"}) {
    Spill(root + name, "half");
  }
  Spill(root + "/mine.tmp", "a person's");
  ASSERT_OK(ClaimAndPrepare(job, {}).status());
  EXPECT_THAT(*ListDirectory(root),
              ::testing::UnorderedElementsAre("mine.tmp", "owner.json",
                                              "owner.lock", "tokenizer"));
  EXPECT_THAT(*ListDirectory(root + "/tokenizer"),
              ::testing::ElementsAre("source.model"));
}

// Its dead coordinator's lock may last for a while.
TEST(JobPreparationTest, OnlyARestoredJobWaitsForItsOwnFolder) {
  const ScratchDirectory scratch;
  TrainingJob job = MakeFakeJob("demo", scratch);
  ASSERT_OK_AND_ASSIGN(const auto claim, ClaimFolder(job, {}));
  EXPECT_THAT(ClaimFolder(job, {.resume = true, .restored = true}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("still in use by job 'demo'")));
  EXPECT_THAT(ClaimFolder(job, {.resume = true}),
              StatusIs(absl::StatusCode::kFailedPrecondition, _));
  job.name = "another";
  EXPECT_THAT(ClaimFolder(job, {.resume = true, .restored = true}),
              StatusIs(absl::StatusCode::kFailedPrecondition, _));
}

// Its folder may be on a disk that is not mounted yet.
TEST(JobPreparationTest, ARestoredJobCreatesNoFolderForItsCheckpoints) {
  const ScratchDirectory scratch;
  const TrainingJob job = MakeFakeJob("demo", scratch);
  const std::string& root = job.checkpoint.directory;
  const JobIntent intent{
      .resume = true, .restored = true, .checkpoint_step = 2};
  const auto is_away = StatusIs(absl::StatusCode::kUnavailable,
                                HasSubstr(CheckpointPath(root, 2)));
  EXPECT_THAT(ClaimFolder(job, intent), is_away);
  EXPECT_FALSE(std::filesystem::exists(root));
  // As long as it has made no checkpoint, nothing can be missed.
  ASSERT_OK_AND_ASSIGN(const auto claim,
                       ClaimFolder(job, {.resume = true, .restored = true}));
  EXPECT_THAT(PrepareJob(job, intent, *claim, {}), is_away);
  EXPECT_OK(PrepareJob(job, {.resume = true, .restored = true}, *claim, {}));
}

TEST(JobPreparationTest, TheDefaultLanguageHasATag) {
  const ScratchDirectory scratch;
  TrainingJob job = MakeFakeJob("demo", scratch);
  job.data.default_language = "fr";
  EXPECT_THAT(ClaimAndPrepare(job, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "data.default_language: expected one of de, got "
                       "\"fr\""));
}

TEST(JobPreparationTest, OthersAreHeardWhileATokenizerTrains) {
  SlowTrainer trainer;
  FakeCluster cluster;
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(SlowTrainer::Needing(cluster.MakeJob("slow"))));
  trainer.WaitUntilItRuns();
  ASSERT_OK(cluster.Submit(cluster.MakeJob("a")));
  ASSERT_OK(cluster.Submit(cluster.MakeJob("b")));
  ASSERT_OK(cluster.Cancel("a"));
  EXPECT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_CANCELLED);
  ASSERT_OK(cluster.Cancel("slow"));
  EXPECT_EQ(cluster.Watch("slow").back().state(), v1::JOB_STATE_CANCELLED);
  trainer.WaitUntilItIsGone();
  EXPECT_EQ(cluster.Watch("b").back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(JobPreparationTest, ACoordinatorThatStopsWaitsForNoTokenizer) {
  SlowTrainer trainer;
  FakeCluster cluster({}, /*keep=*/true);
  ASSERT_OK(cluster.Submit(SlowTrainer::Needing(cluster.MakeJob("slow"))));
  trainer.WaitUntilItRuns();
  EXPECT_GT(trainer.niceness(), ThreadNiceness());
  cluster.coordinator().Drain(absl::Hours(1));
  EXPECT_EQ(cluster.Describe().jobs(0).state(), v1::JOB_STATE_QUEUED);
  cluster.coordinator().Shutdown();
  trainer.WaitUntilItIsGone();
}

TEST(JobPreparationTest, NoneIsMadeOnceItIsToldToStop) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob("a");
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  ASSERT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
  // After Shutdown() no thread of the coordinator holds the folder.
  cluster.coordinator().Shutdown();
  std::stop_source stop;
  stop.request_stop();
  job.steps = 10;
  for (const bool restored : {false, true}) {
    EXPECT_THAT(ClaimAndPrepare(job, {.resume = true, .restored = restored},
                                stop.get_token()),
                StatusIs(absl::StatusCode::kCancelled, _));
  }
  ASSERT_OK_AND_ASSIGN(
      const PreparedJob prepared,
      ClaimAndPrepare(job, {.resume = true, .restored = true}));
  EXPECT_FALSE(prepared.start.trained);
  ASSERT_NE(prepared.start.checkpoint, nullptr);
  EXPECT_EQ(prepared.start.checkpoint->manifest().step, 3);
}

}  // namespace
}  // namespace gshard
