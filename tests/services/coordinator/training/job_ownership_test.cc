// Which job and coordinator may change a checkpoint folder.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/folder_claim.h"
#include "services/checkpoint/manifest.h"
#include "services/coordinator/preparation/job_checkpoint.h"
#include "services/coordinator/preparation/job_preparation.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

TrainingJob FiveSteps(const FakeCluster& cluster, const std::string& name) {
  TrainingJob job = cluster.MakeJob(name);
  job.steps = 5;
  job.checkpoint.every_steps = 2;
  return job;
}

std::vector<std::string> CheckpointsOf(const TrainingJob& job) {
  return ListCheckpoints(job.checkpoint.directory)
      .value_or(std::vector<std::string>());
}

int64_t EpochOf(const TrainingJob& job) {
  const auto owner = ReadOwner(job.checkpoint.directory);
  EXPECT_OK(owner);
  return owner.ok() && owner->has_value() ? (*owner)->epoch : 0;
}

// A folder belongs to one job under any spelling of its path. With keep = 1,
// the second job would remove the first one's last checkpoint.
TEST(JobOwnershipTest, AFolderIsOfOneJobHoweverItIsSpelled) {
  FakeCluster cluster;
  const TrainingJob job = FiveSteps(cluster, "a");
  const std::string& root = job.checkpoint.directory;
  std::filesystem::create_directories(root);
  std::filesystem::create_directory_symlink(root, cluster.scratch / "link");
  ASSERT_OK(cluster.Submit(job));  // waits for members
  const std::vector<std::string> spellings = {
      root, root + "/", root + "/../a/.", cluster.scratch / "link",
      cluster.scratch / "link/"};
  TrainingJob second = FiveSteps(cluster, "b");
  second.checkpoint.keep = 1;
  for (const std::string& spelling : spellings) {
    second.checkpoint.directory = spelling;
    for (const bool resume : {false, true}) {
      EXPECT_THAT(cluster.Submit(second, resume),
                  StatusIs(absl::StatusCode::kAlreadyExists,
                           HasSubstr("is that of job 'a'")))
          << spelling;
    }
  }
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  EXPECT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
  const std::vector<std::string> checkpoints = CheckpointsOf(job);
  ASSERT_FALSE(checkpoints.empty());
  second.steps = 10;
  for (const std::string& spelling : spellings) {
    second.checkpoint.directory = spelling;
    EXPECT_THAT(cluster.Submit(second),
                StatusIs(absl::StatusCode::kAlreadyExists,
                         HasSubstr("without checkpoints")))
        << spelling;
    EXPECT_THAT(cluster.Submit(second, /*resume=*/true),
                StatusIs(kRefused, AllOf(HasSubstr("of job 'b'"),
                                         HasSubstr("of job 'a'"))))
        << spelling;
  }
  EXPECT_EQ(CheckpointsOf(job), checkpoints);
  ExpectTrained(job, 5);
}

TEST(JobOwnershipTest, ARivalCoordinatorIsRefusedWhileTheOwnerLives) {
  FakeCluster owner, rival;
  const TrainingJob job = FiveSteps(owner, "a");
  Hold hold;
  owner.AddRouter("r", hold.At(IsAssign(1)));
  owner.AddWorker("w");
  ASSERT_OK(owner.Submit(job));
  hold.WaitUntilHeld();
  rival.AddRouter("r");
  rival.AddWorker("w");
  TrainingJob other = FiveSteps(rival, "b");
  other.checkpoint.directory = job.checkpoint.directory;
  ASSERT_OK(rival.Submit(other, /*resume=*/true));
  const v1::JobProgress refused = rival.Watch("b").back();
  EXPECT_EQ(refused.state(), v1::JOB_STATE_FAILED);
  EXPECT_FALSE(refused.retryable());
  EXPECT_THAT(refused.status().message(), HasSubstr("in use by job 'a'"));
  hold.Release();
  const v1::JobProgress last = owner.Watch("a").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
  // The folder still belongs to the first job.
  other.name = "c";
  other.steps = 10;
  EXPECT_THAT(rival.Submit(other, /*resume=*/true),
              StatusIs(kRefused, HasSubstr("of job 'a'")));
}

// A job fails and deletes nothing if another job takes over its folder, as is
// possible on a disk without locks.
TEST(JobOwnershipTest, AJobWhoseFolderWasTakenOverFailsAndDeletesNothing) {
  Gate gate(DiskChange::Kind::kRename, "00000004.partial");
  FakeCluster cluster({.faults = &gate});
  TrainingJob job = FiveSteps(cluster, "a");
  job.checkpoint.keep = 1;
  const std::string& root = job.checkpoint.directory;
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  gate.WaitUntilReached();
  std::filesystem::remove(root + "/owner.lock");
  ASSERT_OK_AND_ASSIGN(const auto rival, FolderClaim::Take(root, "b"));
  gate.Open();
  const v1::JobProgress last = cluster.Watch("a").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_FALSE(last.retryable());
  EXPECT_THAT(last.status().message(),
              HasSubstr("taken over by job 'b' (epoch 2"));
  EXPECT_THAT(CheckpointsOf(job), ElementsAre(CheckpointPath(root, 2)));
  EXPECT_TRUE(IsDirectory(PartialCheckpointPath(root, 4)));
  ExpectTrained(job, 2);
  EXPECT_OK(rival->Check());
}

// A rival job of the same name may have finished training while this one was
// paused, so the rival's checkpoints do not decide the error.
TEST(JobOwnershipTest, WhatARivalHasMadeIsNoWordOnWhoLostTheFolder) {
  FakeCluster cluster;
  const TrainingJob job = FiveSteps(cluster, "a");
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  EXPECT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
  const std::string& root = job.checkpoint.directory;
  const auto take = [&] {
    std::filesystem::remove(root + "/owner.lock");
    return FolderClaim::Take(root, job.name);
  };
  ASSERT_OK_AND_ASSIGN(const auto loser, take());
  ASSERT_OK_AND_ASSIGN(const ResumePoint end,
                       FindResumePoint(job, 5, *loser, Scrutiny::kQuick, {}));
  EXPECT_TRUE(end.trained);
  ASSERT_OK_AND_ASSIGN(const auto winner, take());
  EXPECT_THAT(FindResumePoint(job, 5, *loser, Scrutiny::kQuick, {}),
              StatusIs(kRefused, HasSubstr("epoch 3")));
  EXPECT_THAT(FindRollbackPoint(job, 5, *loser, Scrutiny::kQuick, {}),
              StatusIs(kRefused, HasSubstr("epoch 3")));
}

TEST(JobOwnershipTest, TheNextCoordinatorIsTheNextOwner) {
  FakeCluster cluster({}, /*keep=*/true);
  const TrainingJob job = FiveSteps(cluster, "a");
  Hold hold;
  cluster.AddRouter("r");
  cluster.AddWorker("w", hold.At(IsPrepare(4)));
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  EXPECT_EQ(EpochOf(job), 1);
  cluster.RestartCoordinator();
  hold.Release();
  const v1::JobProgress last = cluster.Watch("a").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(EpochOf(job), 2);
  ExpectTrained(job, 5);
}

// The checkpoint's job is from a release with other limits, which accepted it.
TEST(JobOwnershipTest, ACheckpointIsOfAJobThatWouldBeRefusedNow) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster, "a");
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  ASSERT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
  const auto say = [&](const std::string& text) {
    const std::string path = CheckpointPath(job.checkpoint.directory, 5);
    ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
    Manifest manifest = reader->manifest();
    manifest.metadata[kJobKey] = text;
    ASSERT_OK_AND_ASSIGN(const std::string bytes, FormatManifest(manifest));
    Spill(path + "/manifest.json", bytes);
  };
  job.steps = 7;
  TrainingJob other = job;
  other.name = "b";
  say("name: 'a' steps: -1");
  EXPECT_THAT(CheckToBegin(other, /*resume=*/true),
              StatusIs(kRefused, HasSubstr("job 'a'")));
  EXPECT_OK(CheckToBegin(job, /*resume=*/true));
  say("}");
  EXPECT_OK(CheckToBegin(other, /*resume=*/true));
}

// The host of the previous coordinator has died, and the file server keeps its
// lock until a lease expires.
class OldLockTest : public ::testing::Test {
 protected:
  // Restarts the coordinator at step 4 while `owner` has locked the folder.
  void RestartWithLockOf(const std::string& owner) {
    cluster_.AddRouter("r");
    cluster_.AddWorker("w", hold_.At(IsPrepare(4)));
    ASSERT_OK(cluster_.Submit(job_));
    hold_.WaitUntilHeld();
    cluster_.RestartCoordinator([&] {
      ASSERT_OK_AND_ASSIGN(lock_,
                           FolderClaim::Take(job_.checkpoint.directory, owner));
    });
    hold_.Release();
  }
  void WatchUntilItWaits() {
    const std::vector<v1::JobProgress> seen =
        cluster_.Watch("a", [](const v1::JobProgress& progress) {
          return absl::StrContains(progress.status().message(), "in use by");
        });
    EXPECT_EQ(seen.back().state(), v1::JOB_STATE_RECOVERING)
        << seen.back().status().message();
  }

  FakeCluster cluster_{{}, /*keep=*/true};
  const TrainingJob job_ = FiveSteps(cluster_, "a");
  Hold hold_;
  std::shared_ptr<FolderClaim> lock_;
};

TEST_F(OldLockTest, ARestoredJobWaitsForItsOwn) {
  RestartWithLockOf("a");
  WatchUntilItWaits();
  lock_ = nullptr;
  const v1::JobProgress last = cluster_.Watch("a").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job_, 5);
}

TEST_F(OldLockTest, AJobThatWaitsIsCancelledAtOnce) {
  RestartWithLockOf("a");
  WatchUntilItWaits();
  ASSERT_OK(cluster_.Cancel("a"));
  EXPECT_EQ(cluster_.Watch("a").back().state(), v1::JOB_STATE_CANCELLED);
  TrainingJob next = FiveSteps(cluster_, "next");  // needs the disk's thread
  ASSERT_OK(cluster_.Submit(next));
  EXPECT_EQ(cluster_.Watch("next").back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(OldLockTest, AnothersIsNotWaitedFor) {
  RestartWithLockOf("b");
  const v1::JobProgress last = cluster_.Watch("a").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(last.status().message(), HasSubstr("in use by job 'b'"));
}

// A coordinator that knows nothing of the job resumes it under its name.
TEST(JobOwnershipTest, AJobOfTheNameResumesInTheFolder) {
  TrainingJob job;
  FakeCluster before;
  job = FiveSteps(before, "a");
  before.AddRouter("r");
  before.AddWorker("w");
  ASSERT_OK(before.Submit(job));
  EXPECT_EQ(before.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
  FakeCluster after;
  job.steps = 7;
  after.AddRouter("r");
  after.AddWorker("w");
  ASSERT_OK(after.Submit(job, /*resume=*/true));
  EXPECT_EQ(after.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(EpochOf(job), 2);
  ExpectTrained(job, 7);
}

}  // namespace
}  // namespace gshard
