// The disk or store of a job's folder is away for a while, as the coordinator
// sees it. Members that see it end an attempt as if they were lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/monotonic_time.h"
#include "services/base/mutex.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

TrainingJob FiveStepsWithCheckpoints(const FakeCluster& cluster) {
  TrainingJob job = cluster.MakeJob();
  job.steps = 5;
  job.checkpoint.every_steps = 2;
  job.recovery.replacement_wait_ms = 0;
  return job;
}

// Refuses to create a file whose path has `part` in it, some times.
class AwayDisk : public FaultPoints {
 public:
  AwayDisk(std::string part, int times)
      : part_(std::move(part)), left_(times) {}

  absl::Status Reach(const DiskChange& change) override {
    if (change.kind != DiskChange::Kind::kCreate ||
        !absl::StrContains(change.path, part_) || left_-- <= 0) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(
        absl::StrCat("create '", change.path, "': it is away"));
  }

 private:
  const std::string part_;
  std::atomic<int> left_;
};

bool HasWaitedFor(const std::vector<v1::JobProgress>& lines, v1::JobState state,
                  const std::string& cause) {
  return std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
    return line.state() == state &&
           absl::StrContains(line.status().message(), cause);
  });
}

bool HasRecoveredFrom(const std::vector<v1::JobProgress>& lines,
                      const std::string& cause) {
  return HasWaitedFor(lines, v1::JOB_STATE_RECOVERING, cause);
}

// Neither can it be when it is tried again as the attempt ends.
TEST(JobStorageTest, ACheckpointThatCannotBeWrittenCostsAnAttempt) {
  for (const char* const file : {"dense.safetensors", "manifest.json"}) {
    SCOPED_TRACE(file);
    AwayDisk disk(file, 2);
    FakeCluster cluster({.faults = &disk});
    const TrainingJob job = FiveStepsWithCheckpoints(cluster);
    cluster.AddRouter("r");
    cluster.AddWorker("w");
    ASSERT_OK(cluster.Submit(job));
    const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
    ASSERT_EQ(lines.back().state(), v1::JOB_STATE_SUCCEEDED)
        << lines.back().status().message();
    EXPECT_EQ(lines.back().attempt(), 2);
    EXPECT_TRUE(HasRecoveredFrom(lines, ": create '"));
    for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
  }
}

// Renames the folder of a checkpoint, but then cannot be asked whether that is
// durable.
class SilentDisk : public FaultPoints {
 public:
  explicit SilentDisk(std::string checkpoint)
      : checkpoint_(std::move(checkpoint)) {}

  absl::Status Reach(const DiskChange& change) override {
    MutexLock lock(mutex_);
    if (change.kind == DiskChange::Kind::kRename) {
      renamed_ = absl::EndsWith(change.target, checkpoint_);
    } else if (change.kind == DiskChange::Kind::kSyncDirectory && renamed_) {
      renamed_ = false;
      return absl::UnavailableError("sync: it is away");
    }
    return absl::OkStatus();
  }

 private:
  const std::string checkpoint_;
  Mutex mutex_;
  bool renamed_ ABSL_GUARDED_BY(mutex_) = false;
};

// It is there all the same.
TEST(JobStorageTest, ACheckpointThatSeemsNotToBeCommittedIsGoneOnFrom) {
  for (const int64_t step : {2, 5}) {
    SCOPED_TRACE(step);
    SilentDisk disk(absl::StrCat("step-0000000", step));
    FakeCluster cluster({.faults = &disk});
    TrainingJob job = FiveStepsWithCheckpoints(cluster);
    job.checkpoint.asynchronous = false;
    job.serve_as = "m";
    cluster.AddRouter("r");
    FakeMember& worker = cluster.AddWorker("w");
    ASSERT_OK(cluster.Submit(job));
    const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
    ASSERT_EQ(lines.back().state(), v1::JOB_STATE_SUCCEEDED)
        << lines.back().status().message();
    EXPECT_TRUE(HasRecoveredFrom(lines, "sync: it is away"));
    EXPECT_EQ(lines.back().checkpoint_step(), 5);
    const std::vector<std::string> told = worker.commands();
    EXPECT_EQ(std::count(told.begin(), told.end(), "load demo/2"),
              step == 2 ? 1 : 0);
    EXPECT_THAT(told, Contains("load m@5"));
    for (const int64_t kept : {2, 4, 5}) ExpectTrained(job, kept);
  }
}

// All workers are still there with what they have trained.
TEST(JobStorageTest, NoStepIsRepeatedIfItCanBeWrittenThen) {
  for (const bool buddies : {false, true}) {
    SCOPED_TRACE(buddies);
    AwayDisk disk("step-00000004.partial", 1);
    FakeCluster cluster({.faults = &disk});
    TrainingJob job = FiveStepsWithCheckpoints(cluster);
    job.min_workers = 2;
    job.checkpoint.asynchronous = false;
    job.recovery.buddies = buddies;
    cluster.AddRouter("r");
    FakeMember& worker = cluster.AddWorker("w0");
    cluster.AddWorker("w1");
    ASSERT_OK(cluster.Submit(job));
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(last.attempt(), 2);
    EXPECT_EQ(worker.last_load().worker().step(), 4);
    for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
  }
}

// An outage that outlasts its recoveries is not the job's fault.
TEST(JobStorageTest, AJobThatGivesUpMayBeTriedAgain) {
  AwayDisk disk("manifest.json", 1000);
  FakeCluster cluster({.faults = &disk});
  TrainingJob job = FiveStepsWithCheckpoints(cluster);
  job.recovery.max_recoveries = 3;
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(last.retryable());
  EXPECT_THAT(
      last.status().message(),
      AllOf(HasSubstr("gave up after 3 recoveries"), HasSubstr("it is away")));
}

// The same if only a member's disk is away, when it writes or reads, or is not
// mounted.
TEST(JobStorageTest, AJobWhoseMembersHaveNoDiskMayBeTriedAgain) {
  for (const auto& [writes, error] :
       {std::pair(true, absl::UnavailableError("it is away")),
        std::pair(false, absl::UnavailableError("it is away")),
        std::pair(false, absl::NotFoundError("open: it is away"))}) {
    SCOPED_TRACE(error.ToString() + (writes ? ", write" : ", load"));
    FakeCluster cluster;
    TrainingJob job = FiveStepsWithCheckpoints(cluster);
    job.recovery.max_recoveries = 3;
    cluster.AddRouter("r");
    cluster.AddWorker(
        "w",
        [writes = writes, error = error](
            const v1::Command& c) -> std::optional<v1::CommandReply> {
          if (writes ? !c.has_write_checkpoint() : !c.has_load_session()) {
            return std::nullopt;
          }
          return ReplyWith(error);
        });
    ASSERT_OK(cluster.Submit(job));
    const v1::JobProgress last = cluster.Watch("demo").back();
    EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
    EXPECT_TRUE(last.retryable());
    EXPECT_THAT(last.status().message(),
                AllOf(HasSubstr("gave up after 3 recoveries"),
                      HasSubstr("it is away")));
  }
}

// It comes back before the recoveries are used up.
TEST(JobStorageTest, AMembersDiskThatIsAwayForAWhileIsWaitedFor) {
  FakeCluster cluster;
  TrainingJob job = FiveStepsWithCheckpoints(cluster);
  job.recovery.max_recoveries = 3;
  cluster.AddRouter("r");
  std::optional<MonotonicTime> back;
  cluster.AddWorker(
      "w", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.has_load_session()) return std::nullopt;
        const MonotonicTime now = MonotonicTime::Now();
        if (!back.has_value()) back = now + absl::Seconds(2);
        if (now >= *back) return std::nullopt;
        return ReplyWith(absl::UnavailableError("it is away"));
      });
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_LE(last.attempt(), 4);
  ExpectTrained(job, 5);
}

// Nobody can tell then whether it still has its folder.
TEST(JobStorageTest, AStoreThatIsAwayIsNotWhyAJobHasFailed) {
  FakeObjectStore store;
  store.Use();
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.checkpoint.directory = "s3://bucket/demo";
  cluster.AddRouter("r");
  cluster.AddWorker(
      "w", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.has_prepare_step()) return std::nullopt;
        store.SetOnRequest([](const std::string&) {
          return FakeObjectStore::Fault::kSlowDown;
        });
        return ReplyWith(absl::InvalidArgumentError("no such step"));
      });
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_FALSE(last.retryable());
  EXPECT_THAT(last.status().message(), HasSubstr("no such step"));
}

TEST(JobStorageTest, TheFolderIsWaitedForBeforeTheFirstAttempt) {
  for (const char* const file : {"owner.json", "source.model"}) {
    SCOPED_TRACE(file);
    AwayDisk disk(file, 2);
    FakeCluster cluster({.faults = &disk});
    const TrainingJob job = FiveStepsWithCheckpoints(cluster);
    cluster.AddRouter("r");
    cluster.AddWorker("w");
    ASSERT_OK(cluster.Submit(job));
    const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
    ASSERT_EQ(lines.back().state(), v1::JOB_STATE_SUCCEEDED)
        << lines.back().status().message();
    EXPECT_EQ(lines.back().attempt(), 1);
    EXPECT_TRUE(HasWaitedFor(lines, v1::JOB_STATE_WAITING, "it is away"));
    ExpectTrained(job, 5);
  }
}

// By what cannot be looked at when the next attempt begins.
TEST(JobStorageTest, TheLastCheckpointIsWaitedFor) {
  for (const bool comes_back : {true, false}) {
    FakeCluster cluster;
    TrainingJob job = FiveStepsWithCheckpoints(cluster);
    job.min_workers = 2;
    job.recovery.max_recoveries = comes_back ? 100 : 1;
    cluster.AddRouter("r");
    cluster.AddWorker("w0");
    Hold hold;
    FakeMember& lost = cluster.AddWorker("w1", hold.At(IsPrepare(3)));
    ASSERT_OK(cluster.Submit(job));
    hold.WaitUntilHeld();
    while (cluster.Describe().jobs(0).checkpoint_step() < 2) {
      std::this_thread::yield();
    }
    const std::string away = CheckpointPath(job.checkpoint.directory, 3);
    std::filesystem::create_symlink("away", away);
    hold.Lose(cluster, lost);
    cluster.Watch("demo", [](const v1::JobProgress& line) {
      return absl::StrContains(line.status().message(), "link to nothing");
    });
    if (comes_back) std::filesystem::remove(away);
    const v1::JobProgress last = cluster.Watch("demo").back();
    if (comes_back) {
      ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED)
          << last.status().message();
      EXPECT_EQ(last.attempt(), 2);
      for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
    } else {
      EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
      EXPECT_TRUE(last.retryable());
      EXPECT_THAT(
          last.status().message(),
          AllOf(HasSubstr("gave up after 1 recoveries"), HasSubstr(away)));
    }
  }
}

// After a restart, when the disk of the job's folder is mounted late: its path
// leads nowhere, or to the empty folder that it will be mounted on. The last
// checkpoint is the job's own, or that which it was resumed from.
TEST(JobStorageTest, ARestoredJobNeverBeginsAnewForLackOfItsDisk) {
  for (const bool resumed : {false, true}) {
    SCOPED_TRACE(resumed ? "resumed, on a mount point" : "without a folder");
    FakeCluster cluster({}, /*keep=*/true);
    TrainingJob job = FiveStepsWithCheckpoints(cluster);
    job.checkpoint.asynchronous = false;
    cluster.AddRouter("r");
    Hold hold;
    FakeMember& worker = cluster.AddWorker("w", hold.At(IsPrepare(4)));
    if (resumed) {
      job.steps = 2;
      ASSERT_OK(cluster.Submit(job));
      ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
      job.steps = 5;
      job.checkpoint.every_steps = 0;
    }
    ASSERT_OK(cluster.Submit(job, resumed));
    hold.WaitUntilHeld();
    const std::string& root = job.checkpoint.directory;
    cluster.RestartCoordinator([&] {
      std::filesystem::rename(root, root + ".away");
      if (resumed) std::filesystem::create_directory(root);
    });
    hold.Release();
    const std::vector<v1::JobProgress> waiting =
        cluster.Watch("demo", [](const v1::JobProgress& line) {
          return absl::StrContains(line.status().message(),
                                   "is its disk there");
        });
    ASSERT_EQ(waiting.back().state(), v1::JOB_STATE_RECOVERING);
    EXPECT_THAT(waiting.back().status().message(),
                HasSubstr(CheckpointPath(root, 2)));
    if (resumed) {
      ASSERT_TRUE(std::filesystem::is_empty(root));
      std::filesystem::remove(root);
    } else {
      ASSERT_FALSE(std::filesystem::exists(root));
    }
    std::filesystem::rename(root + ".away", root);
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(worker.last_load().worker().step(), 2);
    ExpectTrained(job, 5);
  }
}

// The same for one that is submitted to resume, before it is queued and while
// it waits for its turn. Its text is away, too.
TEST(JobStorageTest, AJobToResumeNeverBeginsAnewForLackOfItsDisk) {
  FakeCluster cluster;
  TrainingJob job = FiveStepsWithCheckpoints(cluster);
  job.checkpoint.asynchronous = false;
  job.steps = 2;
  cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  const std::string& root = job.checkpoint.directory;
  const std::string text = job.data.train_path;
  const auto unmount = [&] {
    for (const std::string& path : {root, text}) {
      std::filesystem::rename(path, path + ".away");
    }
  };
  const auto mount = [&] {
    for (const std::string& path : {root, text}) {
      std::filesystem::rename(path + ".away", path);
    }
  };
  job.steps = 5;
  unmount();
  EXPECT_THAT(cluster.Submit(job, /*resume=*/true),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(CheckpointPath(root, 2)),
                             HasSubstr("is its disk there"))));
  EXPECT_FALSE(std::filesystem::exists(root));
  mount();
  // Behind another job.
  TrainingJob other = cluster.MakeJob("other");
  other.min_workers = 2;
  ASSERT_OK(cluster.Submit(other));
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  EXPECT_EQ(cluster.Watch("demo", [](const auto&) { return true; })
                .back()
                .checkpoint_directory(),
            CheckpointPath(root, 2));
  unmount();
  ASSERT_OK(cluster.Cancel("other"));
  const std::vector<v1::JobProgress> waiting =
      cluster.Watch("demo", [](const v1::JobProgress& line) {
        return absl::StrContains(line.status().message(), "is its disk there");
      });
  EXPECT_EQ(waiting.back().state(), v1::JOB_STATE_WAITING);
  EXPECT_FALSE(std::filesystem::exists(root));
  mount();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(worker.last_load().worker().step(), 2);
  ExpectTrained(job, 5);
}

// Nor one that runs: what it had was removed, say.
TEST(JobStorageTest, AJobWhoseCheckpointsAreGoneDoesNotBeginAnew) {
  FakeCluster cluster;
  TrainingJob job = FiveStepsWithCheckpoints(cluster);
  job.checkpoint.asynchronous = false;
  job.min_workers = 2;
  job.recovery.max_recoveries = 1;
  cluster.AddRouter("r");
  FakeMember& stays = cluster.AddWorker("w0");
  Hold hold;
  FakeMember& lost = cluster.AddWorker("w1", hold.At(IsPrepare(3)));
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  ASSERT_OK(RemoveTree(CheckpointPath(job.checkpoint.directory, 2)));
  hold.Lose(cluster, lost);
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(last.retryable());
  EXPECT_THAT(last.status().message(), HasSubstr("is its disk there"));
  EXPECT_EQ(stays.last_load().session(), "demo/1");
}

TEST(JobStorageTest, ARestoredJobWhoseDiskStaysAwayMayBeSubmittedAgain) {
  std::atomic<int64_t> minutes{0};
  FakeCluster cluster(
      {.lease = absl::Hours(24),
       .clock =
           [&] { return MonotonicTime() + absl::Minutes(minutes.load()); }},
      /*keep=*/true);
  TrainingJob job = FiveStepsWithCheckpoints(cluster);
  job.checkpoint.asynchronous = false;
  cluster.AddRouter("r");
  Hold hold;
  cluster.AddWorker("w", hold.At(IsPrepare(4)));
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  const std::string& root = job.checkpoint.directory;
  cluster.RestartCoordinator(
      [&] { std::filesystem::rename(root, root + ".away"); });
  hold.Release();
  cluster.Watch("demo", [](const v1::JobProgress& line) {
    return absl::StrContains(line.status().message(), "is its disk there");
  });
  minutes = 6;
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(last.retryable());
  EXPECT_THAT(last.status().message(), HasSubstr("is its disk there"));
  EXPECT_FALSE(std::filesystem::exists(root));
}

TEST(JobStorageTest, ACancelDoesNotWaitForDenseParametersToBeRead) {
  FakeObjectStore store;
  store.Use();
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.checkpoint.directory = "s3://bucket/demo";
  cluster.AddRouter("r");
  Hold hold;
  cluster.AddWorker("w", hold.At([](const auto& c) {
    return c.has_load_session() && c.load_session().session() == "demo/2";
  }));
  ASSERT_OK(cluster.Submit(job));
  ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  // After each opening the first read has the header; the elements wait.
  std::promise<void> reached, go_on;
  auto may_go_on = go_on.get_future().share();
  std::atomic<int> reads = 0;
  std::atomic<bool> first = true;
  store.SetOnRequest([&](const std::string& request) {
    if (!absl::StrContains(request, "dense")) {
      return FakeObjectStore::Fault::kNone;
    }
    if (absl::StartsWith(request, "HEAD")) reads = 0;
    if (absl::StartsWith(request, "GET") && reads++ > 0) {
      if (first.exchange(false)) reached.set_value();
      may_go_on.wait();
    }
    return FakeObjectStore::Fault::kNone;
  });
  job.steps = 5;
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  hold.WaitUntilHeld();
  reached.get_future().wait();
  hold.Release();
  ASSERT_OK(cluster.Cancel("demo"));
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_CANCELLED);
  go_on.set_value();
}

TEST(JobStorageTest, DenseParametersAreReadInAnotherAttempt) {
  FakeObjectStore store;
  store.Use();
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.checkpoint.directory = "s3://bucket/demo";
  job.recovery.replacement_wait_ms = 0;
  cluster.AddRouter("r");
  // Does not read while the coordinator does.
  Hold hold;
  cluster.AddWorker("w", hold.At([](const auto& c) {
    return c.has_load_session() && c.load_session().session() == "demo/2";
  }));
  ASSERT_OK(cluster.Submit(job));
  ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  // After each opening the first read has the header; the elements are refused,
  // until the client gives up once.
  std::atomic<int> reads = 0, refused = 0;
  store.SetOnRequest([&](const std::string& request) {
    if (!absl::StrContains(request, "dense")) {
      return FakeObjectStore::Fault::kNone;
    }
    if (absl::StartsWith(request, "HEAD")) reads = 0;
    if (!absl::StartsWith(request, "GET") || reads++ == 0 || refused == 8) {
      return FakeObjectStore::Fault::kNone;
    }
    ++refused;
    return FakeObjectStore::Fault::kSlowDown;
  });
  job.steps = 5;
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  hold.WaitUntilHeld();
  while (refused < 8) std::this_thread::yield();
  hold.Release();
  const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
  ASSERT_EQ(lines.back().state(), v1::JOB_STATE_SUCCEEDED)
      << lines.back().status().message();
  EXPECT_EQ(lines.back().attempt(), 3);
  EXPECT_TRUE(HasRecoveredFrom(lines, "SlowDown"));
  ExpectTrained(job, 5);
}

}  // namespace
}  // namespace gshard
