// Checkpoints that are written while steps continue.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::Not;

TrainingJob FiveSteps(const FakeCluster& cluster) {
  TrainingJob job = cluster.MakeJob();
  job.steps = 5;
  job.checkpoint.every_steps = 2;
  job.recovery.replacement_wait_ms = 0;
  return job;
}

// The same, of which only the last checkpoint is kept.
TrainingJob FiveStepsKeepingOne(const FakeCluster& cluster) {
  TrainingJob job = FiveSteps(cluster);
  job.checkpoint.keep = 1;
  job.checkpoint.keep_best = 0;
  return job;
}

// Holds back a worker's shards of one step until Open().
class HeldWrite {
 public:
  explicit HeldWrite(int64_t step) : step_(step) {}

  FakeMember::Intercept Intercept() {
    return [this](const v1::Command& c) -> std::optional<v1::CommandReply> {
      if (!c.has_write_checkpoint()) return std::nullopt;
      if (c.write_checkpoint().step() == step_) opened_.wait();
      EXPECT_TRUE(open_now_) << "two checkpoints are in flight";
      return std::nullopt;
    };
  }
  void Open() {
    open_now_ = true;
    open_.set_value();
  }

 private:
  const int64_t step_;
  std::atomic<bool> open_now_{false};
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

// The checksums of a checkpoint's tensors.
std::map<std::string, std::string> Sums(const TrainingJob& job, int64_t step) {
  const auto reader =
      CheckpointReader::Open(CheckpointPath(job.checkpoint.directory, step));
  EXPECT_OK(reader);
  std::map<std::string, std::string> sums;
  if (!reader.ok()) return sums;
  for (const TensorEntry& entry : (*reader)->manifest().tensors) {
    sums[entry.name] = entry.sha256;
  }
  return sums;
}

v1::JobProgress ExpectSuccess(FakeCluster& cluster, const std::string& job) {
  const v1::JobProgress last = cluster.Watch(job).back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  return last;
}

TEST(JobCheckpointingTest, StepsGoOnWhileAWorkerWrites) {
  FakeCluster cluster;
  const TrainingJob job = FiveSteps(cluster);
  cluster.AddRouter("r");
  HeldWrite held(2);
  FakeMember& worker = cluster.AddWorker("w", held.Intercept());
  ASSERT_OK(cluster.Submit(job));
  worker.WaitFor("commit 4");
  EXPECT_FALSE(IsDirectory(CheckpointPath(job.checkpoint.directory, 2)));
  // The next checkpoint waits for this one.
  EXPECT_THAT(worker.commands(), Not(Contains("write 4")));
  held.Open();
  const v1::JobProgress last = ExpectSuccess(cluster, "demo");
  EXPECT_EQ(last.attempt(), 1);
  EXPECT_EQ(last.checkpoint_step(), 5);
  for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
}

TEST(JobCheckpointingTest, StepsGoOnWhileTheDenseSideIsWritten) {
  for (const auto& [kind, file] :
       {std::pair(DiskChange::Kind::kCreate, "dense.safetensors"),
        std::pair(DiskChange::Kind::kCreate, "manifest.json"),
        std::pair(DiskChange::Kind::kRename, "00000002.partial")}) {
    SCOPED_TRACE(file);
    Gate gate(kind, file);
    FakeCluster cluster({.faults = &gate});
    const TrainingJob job = FiveSteps(cluster);
    cluster.AddRouter("r");
    FakeMember& worker = cluster.AddWorker("w");
    ASSERT_OK(cluster.Submit(job));
    gate.WaitUntilReached();
    worker.WaitFor("commit 4");
    EXPECT_FALSE(IsDirectory(CheckpointPath(job.checkpoint.directory, 2)));
    gate.Open();
    ExpectSuccess(cluster, "demo");
    for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
  }
}

TEST(JobCheckpointingTest, WritesTheBytesThatAreWrittenWhileStepsWait) {
  FakeCluster cluster;
  std::vector<TrainingJob> jobs;
  for (const bool asynchronous : {true, false}) {
    jobs.push_back(FiveSteps(cluster));
    jobs.back().name = asynchronous ? "on" : "off";
    jobs.back().checkpoint.directory = cluster.scratch / jobs.back().name;
    jobs.back().checkpoint.asynchronous = asynchronous;
  }
  cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w");
  for (const TrainingJob& job : jobs) {
    ASSERT_OK(cluster.Submit(job));
    ExpectSuccess(cluster, job.name);
  }
  for (const int64_t step : {2, 4, 5}) {
    EXPECT_EQ(Sums(jobs[0], step), Sums(jobs[1], step));
    EXPECT_GT(Sums(jobs[0], step).size(), 20u);
  }
  EXPECT_THAT(worker.commands(), Contains("write 2"));
}

TEST(JobCheckpointingTest, StepsWaitIfTheJobSaysSo) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  job.checkpoint.asynchronous = false;
  cluster.AddRouter(
      "r", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (c.has_assign_microbatch() && c.assign_microbatch().step() == 3) {
          EXPECT_TRUE(IsDirectory(CheckpointPath(job.checkpoint.directory, 2)));
        }
        return std::nullopt;
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  ExpectSuccess(cluster, "demo");
}

TEST(JobCheckpointingTest, AWorkerIsLostWithAShardUnwritten) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  job.min_workers = 2;
  cluster.AddRouter("r");
  FakeMember& stays = cluster.AddWorker("w0");
  std::promise<void> release;
  auto released = release.get_future().share();
  FakeMember& lost = cluster.AddWorker(
      "w1", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.has_write_checkpoint()) return std::nullopt;
        released.wait();
        return ReplyWith(absl::CancelledError("left"));
      });
  ASSERT_OK(cluster.Submit(job));
  lost.WaitFor("commit 3");
  std::thread leave([&] { lost.Leave(); });
  stays.WaitFor("load demo/2");
  release.set_value();
  leave.join();
  EXPECT_EQ(ExpectSuccess(cluster, "demo").attempt(), 2);
  // That checkpoint was never completed, so training starts over.
  EXPECT_TRUE(stays.last_load().worker().source().has_initial_seed());
  for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
}

TEST(JobCheckpointingTest, ACancelledJobLeavesNoHalfCheckpoint) {
  Gate gate(DiskChange::Kind::kSync, "dense.safetensors");
  FakeCluster cluster({.faults = &gate});
  TrainingJob job = FiveSteps(cluster);
  cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  gate.WaitUntilReached();
  worker.WaitFor("commit 3");
  std::thread cancel([&] { EXPECT_OK(cluster.Cancel("demo")); });
  worker.WaitFor("abort demo/1");
  gate.Open();
  cancel.join();
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_CANCELLED);
  EXPECT_FALSE(IsDirectory(CheckpointPath(job.checkpoint.directory, 2)));
  EXPECT_FALSE(IsDirectory(PartialCheckpointPath(job.checkpoint.directory, 2)));
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  ExpectSuccess(cluster, "demo");
  for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
}

// The file that is being written, or the removal of what members have written.
TEST(JobCheckpointingTest, ACancelDoesNotWaitForADiskThatHangs) {
  for (const auto& [kind, part] :
       {std::pair(DiskChange::Kind::kSync, "dense.safetensors"),
        std::pair(DiskChange::Kind::kRemove, ".partial")}) {
    SCOPED_TRACE(part);
    std::atomic<int64_t> minutes{0};
    std::atomic<bool> over{false};
    Gate gate(kind, part);
    FakeCluster cluster(
        {.lease = absl::Hours(1'000'000),
         .command_timeout = absl::Hours(1'000'000),
         .load_timeout = absl::Hours(1'000'000),
         .clock =
             [&] { return MonotonicTime() + absl::Minutes(minutes.load()); },
         .faults = &gate});
    const TrainingJob job = FiveSteps(cluster);
    cluster.AddRouter("r");
    HeldWrite held(2);
    FakeMember& worker = cluster.AddWorker("w", held.Intercept());
    ASSERT_OK(cluster.Submit(job));
    worker.WaitFor("commit 4");
    const auto cancel = [&] {
      v1::CancelJobRequest request;
      request.set_job("demo");
      cluster.coordinator().CancelJob(request, {},
                                      [&](const auto&) { over = true; });
    };
    cancel();
    worker.WaitFor("abort demo/1");
    held.Open();
    gate.WaitUntilReached();
    // Another one wakes the job, which looks at the clock.
    for (; !over; ++minutes) {
      cancel();
      cluster.Describe();
    }
    EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_CANCELLED);
    EXPECT_TRUE(
        IsDirectory(PartialCheckpointPath(job.checkpoint.directory, 2)));
    gate.Open();
    ASSERT_OK(cluster.Submit(job, /*resume=*/true));
    ExpectSuccess(cluster, "demo");
    EXPECT_FALSE(
        IsDirectory(PartialCheckpointPath(job.checkpoint.directory, 2)));
    for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
  }
}

// A worker whose gradients of `step` are not finite.
FakeMember::Intercept NotFiniteAt(int64_t step) {
  return [step](const v1::Command& c) -> std::optional<v1::CommandReply> {
    if (!c.has_prepare_step() || c.prepare_step().step() != step) {
      return std::nullopt;
    }
    v1::CommandReply reply;
    for (const char* stack : {"encoder", "decoder"}) {
      for (const char* weight : {"wi", "wo"}) {
        for (int e = 0; e < 3; ++e) {
          auto* const norm = reply.mutable_step_prepared()->add_norms();
          norm->set_tensor(absl::StrCat(stack, ".0.moe.", weight, "/", e));
          norm->set_squared_norm(std::numeric_limits<double>::infinity());
        }
      }
    }
    return reply;
  };
}

TEST(JobCheckpointingTest, RollingBackWaitsForTheCheckpointItNeeds) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  job.on_nonfinite = OnNonfinite::kRollback;
  cluster.AddRouter("r");
  HeldWrite held(2);
  FakeMember& worker = cluster.AddWorker(
      "w",
      [not_finite = NotFiniteAt(3), hold = held.Intercept()](
          const v1::Command& c) -> std::optional<v1::CommandReply> {
        std::optional<v1::CommandReply> reply = hold(c);
        return reply.has_value() ? reply : not_finite(c);
      });
  ASSERT_OK(cluster.Submit(job));
  worker.WaitFor("prepare 3");
  cluster.Watch("demo", [](const auto& p) { return p.nonfinite_steps() > 0; });
  held.Open();
  EXPECT_EQ(ExpectSuccess(cluster, "demo").attempt(), 2);
  EXPECT_EQ(worker.last_load().worker().source().checkpoint_directory(),
            CheckpointPath(job.checkpoint.directory, 2));
  ExpectTrained(job, 2);
  ExpectTrained(job, 4, {3});
  ExpectTrained(job, 5, {3});
}

// Step 6 of a resumed job is not finite: it rolls back to step 4, since step 5
// is no multiple of two. `keep` is 1, but that checkpoint is kept, too.
TEST(JobCheckpointingTest, KeepsWhatRollingBackNeeds) {
  for (const bool removed : {false, true}) {
    SCOPED_TRACE(removed);
    FakeCluster cluster;
    TrainingJob job = FiveStepsKeepingOne(cluster);
    job.on_nonfinite = OnNonfinite::kRollback;
    cluster.AddRouter("r");
    cluster.AddWorker("w", NotFiniteAt(6));
    ASSERT_OK(cluster.Submit(job));
    ExpectSuccess(cluster, "demo");
    const std::string base = CheckpointPath(job.checkpoint.directory, 4);
    EXPECT_FALSE(IsDirectory(CheckpointPath(job.checkpoint.directory, 2)));
    ExpectTrained(job, 4);
    ExpectTrained(job, 5);
    job.steps = 7;
    if (removed) {
      ASSERT_OK(RemoveTree(base));
      EXPECT_THAT(cluster.Submit(job, /*resume=*/true),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           ::testing::HasSubstr(base)));
      continue;
    }
    ASSERT_OK(cluster.Submit(job, /*resume=*/true));
    ExpectSuccess(cluster, "demo");
    ExpectTrained(job, 7, {5, 6});
  }
}

// The same without that checkpoint, but with one before it: the steps between
// them are made again.
TEST(JobCheckpointingTest, MakesAgainWhatRollingBackNeeds) {
  FakeCluster cluster;
  TrainingJob job = FiveSteps(cluster);
  job.on_nonfinite = OnNonfinite::kRollback;
  cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w", NotFiniteAt(6));
  ASSERT_OK(cluster.Submit(job));
  ExpectSuccess(cluster, "demo");
  ASSERT_OK(RemoveTree(CheckpointPath(job.checkpoint.directory, 4)));
  job.steps = 7;
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  ExpectSuccess(cluster, "demo");
  ExpectTrained(job, 7, {5, 6});
  ExpectTrained(job, 5);  // which is kept, too
  const std::vector<std::string> commands = worker.commands();
  EXPECT_EQ(std::count(commands.begin(), commands.end(), "prepare 2"), 1);
  EXPECT_EQ(std::count(commands.begin(), commands.end(), "prepare 3"), 2);
}

// The job has kept step 5 only, and a rollback of what continues it would lead
// to step 4, i.e. to the beginning, as that is gone.
TEST(JobCheckpointingTest, ARollbackThatLacksItsCheckpointIsRefused) {
  FakeCluster cluster;
  TrainingJob job = FiveStepsKeepingOne(cluster);
  cluster.AddRouter("r");
  cluster.AddWorker("w", NotFiniteAt(6));
  ASSERT_OK(cluster.Submit(job));
  ExpectSuccess(cluster, "demo");
  job.steps = 7;
  job.on_nonfinite = OnNonfinite::kRollback;
  EXPECT_THAT(cluster.Submit(job, /*resume=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::HasSubstr("expected one that divides 5")));
  job.checkpoint.every_steps = 5;
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  ExpectSuccess(cluster, "demo");
  ExpectTrained(job, 7, {6});
}

TEST(JobCheckpointingTest, KeepsWhatIsServed) {
  FakeCluster cluster;
  TrainingJob job = FiveStepsKeepingOne(cluster);
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  ExpectSuccess(cluster, "demo");
  const std::string served = CheckpointPath(job.checkpoint.directory, 5);
  ASSERT_OK(cluster.LoadModel("m", "1", served));
  job.steps = 9;
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  ExpectSuccess(cluster, "demo");
  EXPECT_TRUE(IsDirectory(served));
  EXPECT_FALSE(IsDirectory(CheckpointPath(job.checkpoint.directory, 8)));
  ASSERT_OK(cluster.UnloadModel("m@1"));
  job.steps = 11;
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  ExpectSuccess(cluster, "demo");
  EXPECT_FALSE(IsDirectory(served));
}

TEST(JobCheckpointingTest, KeepsWhatWillBeServedOnceThereAreMembers) {
  const ScratchDirectory scratch;
  Metrics metrics("coordinator", "1");
  const GaugeFamily of_file =
      metrics.AddGaugeFamily("gshard_of_file", "", {"state"});
  FakeCluster cluster({.min_workers = 2,
                       .models_file = scratch / "models.textproto",
                       .models_file_interval = absl::Milliseconds(1),
                       .models_file_models = of_file});
  TrainingJob job = FiveStepsKeepingOne(cluster);
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  ExpectSuccess(cluster, "demo");
  const std::string wanted = CheckpointPath(job.checkpoint.directory, 5);
  Spill(scratch / "models.textproto",
        absl::StrCat("models { name: 'm' checkpoint: '", wanted, "' }"));
  while (of_file.With({"waiting"}).Value() == 0) std::this_thread::yield();
  job.steps = 9;
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  ExpectSuccess(cluster, "demo");
  EXPECT_TRUE(IsDirectory(wanted));
  cluster.AddWorker("w2");
  while (of_file.With({"served"}).Value() == 0) std::this_thread::yield();
}

}  // namespace
}  // namespace gshard
