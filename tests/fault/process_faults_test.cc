// The failure table of ARCHITECTURE.md with real processes that die, are paused
// or are cut off: the fault is detected, the job recovers, and its result has
// the bits of an undisturbed run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/fault/process_cluster.h"
#include "tests/integration/cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr int64_t kLeaseMs = 1000;

using Tensors = std::map<std::string, Tensor>;

// The tensors of the job's last checkpoint.
Tensors Trained(const TrainingJob& job) {
  Tensors tensors;
  const auto path = LatestCheckpoint(job.checkpoint.directory);
  EXPECT_OK(path.status());
  if (!path.ok()) return tensors;
  const auto reader = CheckpointReader::Open(*path);
  EXPECT_OK(reader.status());
  if (!reader.ok()) return tensors;
  EXPECT_EQ((*reader)->manifest().step, job.steps);
  for (const TensorEntry& entry : (*reader)->manifest().tensors) {
    const auto tensor = (*reader)->Read(entry.name);
    EXPECT_OK(tensor.status());
    if (tensor.ok()) tensors[entry.name] = *tensor;
  }
  return tensors;
}

class ProcessFaultsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ProcessCluster cluster(/*lease_ms=*/60'000);
    ASSERT_OK(cluster.Submit(cluster.Job()));
    ASSERT_OK(cluster.AwaitEnd("names").status());
    undisturbed_ = new Tensors(Trained(cluster.Job()));
  }
  static void TearDownTestSuite() { delete undisturbed_; }

  // Runs the job with `fault` in the middle; `fault` returns once the cluster
  // is whole again.
  static void ExpectSameAfter(
      const std::function<void(ProcessCluster&)>& fault) {
    ProcessCluster cluster(kLeaseMs);
    ASSERT_OK(cluster.Submit(cluster.Job()));
    ASSERT_TRUE(cluster.AwaitStep(5));
    fault(cluster);
    ASSERT_OK_AND_ASSIGN(const v1::JobProgress last, cluster.AwaitEnd("names"));
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    const Tensors tensors = Trained(cluster.Job());
    ASSERT_FALSE(undisturbed_->empty());
    ASSERT_EQ(tensors.size(), undisturbed_->size());
    for (const auto& [name, value] : *undisturbed_) {
      EXPECT_TRUE(TensorEqual(tensors.at(name), value)) << name;
    }
  }

  static Tensors* undisturbed_;
};

Tensors* ProcessFaultsTest::undisturbed_ = nullptr;

TEST_F(ProcessFaultsTest, ARouterIsKilled) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.Kill("router-0");
    EXPECT_TRUE(cluster.AwaitMember("router-0", false));
    cluster.Restart("router-0");
  });
}

TEST_F(ProcessFaultsTest, AWorkerIsKilled) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.Kill("worker-1");
    EXPECT_TRUE(cluster.AwaitMember("worker-1", false));
    cluster.Restart("worker-1");
    EXPECT_TRUE(cluster.AwaitMember("worker-1", true));
  });
}

TEST_F(ProcessFaultsTest, TheCoordinatorIsKilled) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.Kill("coordinator");
    EXPECT_TRUE(cluster.AwaitLog("worker-0", "lost the coordinator"));
    cluster.Restart("coordinator");
    EXPECT_TRUE(cluster.AwaitMember("worker-0", true));
  });
}

TEST_F(ProcessFaultsTest, ARouterIsPaused) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.Pause("router-1");
    EXPECT_TRUE(cluster.AwaitMember("router-1", false));
    cluster.GoOn("router-1");
    EXPECT_TRUE(cluster.AwaitMember("router-1", true));
  });
}

TEST_F(ProcessFaultsTest, AWorkerIsPaused) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.Pause("worker-2");
    EXPECT_TRUE(cluster.AwaitMember("worker-2", false));
    cluster.GoOn("worker-2");
    EXPECT_TRUE(cluster.AwaitMember("worker-2", true));
  });
}

TEST_F(ProcessFaultsTest, TheCoordinatorIsPaused) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.Pause("coordinator");
    EXPECT_TRUE(cluster.AwaitLog("worker-0", "lost the coordinator"));
    EXPECT_TRUE(cluster.AwaitLog("router-0", "lost the coordinator"));
    cluster.GoOn("coordinator");
    EXPECT_TRUE(cluster.AwaitMember("worker-0", true));
  });
}

TEST_F(ProcessFaultsTest, ARouterIsCutOff) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.ToCoordinator("router-0").Silence();
    EXPECT_TRUE(cluster.AwaitMember("router-0", false));
    // The router itself detects that it is no longer a member.
    EXPECT_TRUE(cluster.AwaitLog("router-0", "lost the coordinator"));
    cluster.ToCoordinator("router-0").Heal();
    EXPECT_TRUE(cluster.AwaitMember("router-0", true));
  });
}

TEST_F(ProcessFaultsTest, AWorkerIsCutOff) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.ToCoordinator("worker-0").Silence();
    cluster.ToWorker("worker-0").Silence();
    EXPECT_TRUE(cluster.AwaitMember("worker-0", false));
    EXPECT_TRUE(cluster.AwaitLog("worker-0", "lost the coordinator"));
    cluster.ToWorker("worker-0").Heal();
    cluster.ToCoordinator("worker-0").Heal();
    EXPECT_TRUE(cluster.AwaitMember("worker-0", true));
  });
}

TEST_F(ProcessFaultsTest, TheCoordinatorIsCutOff) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    const char* const members[] = {"router-0", "router-1", "worker-0",
                                   "worker-1", "worker-2"};
    for (const char* member : members) cluster.ToCoordinator(member).Silence();
    for (const char* member : members) {
      EXPECT_TRUE(cluster.AwaitMember(member, false));
      EXPECT_TRUE(cluster.AwaitLog(member, "lost the coordinator"));
    }
    for (const char* member : members) cluster.ToCoordinator(member).Heal();
  });
}

// A worker whose link to the routers alone is cut keeps its lease: the routers'
// connections detect the cut.
TEST_F(ProcessFaultsTest, RoutersLoseSightOfAWorker) {
  ExpectSameAfter([](ProcessCluster& cluster) {
    cluster.ToWorker("worker-1").Silence();
    EXPECT_TRUE(cluster.AwaitLog(
        "coordinator", "expert worker 'worker-1': the stream was lost"));
    cluster.ToWorker("worker-1").Heal();
  });
}

// The job finishes without a worker that stays paused, although what routers
// send to it is never read and a unix socket has no kernel timeout for its
// peer. (WorkerConnectionTest covers a full socket, which the flow-control
// windows of our servers prevent here.)
TEST(PausedWorkerTest, AWorkerThatStaysPausedIsDoneWithout) {
  ProcessCluster cluster(/*lease_ms=*/5'000, ProcessCluster::Wires::kSockets);
  TrainingJob job = cluster.Job();
  // The rows that a layer sends to one worker exceed its flow-control window.
  job.model.model_width = 1024;
  job.tokens_per_microbatch = 1024;
  job.microbatches_per_step = 2;
  job.steps = 10;
  job.min_workers = 2;
  ASSERT_OK(cluster.Submit(job));
  ASSERT_TRUE(cluster.AwaitStep(2));
  // The worker is paused while idle, so that the next calls find it paused.
  for (const char* router : {"router-0", "router-1"}) cluster.Pause(router);
  ASSERT_TRUE(cluster.AwaitHeartbeat("worker-2", /*idle=*/true));
  cluster.Pause("worker-2");
  for (const char* router : {"router-0", "router-1"}) cluster.GoOn(router);
  ASSERT_OK_AND_ASSIGN(const v1::JobProgress last, cluster.AwaitEnd("names"));
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_GE(last.attempt(), 2);
}

// Routers leave at once, with the step in progress.
TEST(SystemStopTest, KeepsTheStepsThatWereCommitted) {
  for (const bool members_first : {true, false}) {
    SCOPED_TRACE(members_first);
    ProcessCluster cluster(/*lease_ms=*/5'000);
    TrainingJob job = cluster.Job();
    job.steps = 1'000'000;
    job.checkpoint.every_steps = 0;
    ASSERT_OK(cluster.Submit(job));
    ASSERT_TRUE(cluster.AwaitStep(5));
    ASSERT_OK_AND_ASSIGN(const v1::JobInfo before, cluster.Info("names"));
    cluster.StopAll(members_first);
    ASSERT_OK_AND_ASSIGN(const std::string path,
                         LatestCheckpoint(job.checkpoint.directory));
    ASSERT_OK_AND_ASSIGN(const auto last, CheckpointReader::Open(path));
    const int64_t step = last->manifest().step;
    EXPECT_GE(step, before.progress().step());
    cluster.StartAll();
    ASSERT_TRUE(cluster.AwaitStep(step + 1));
    ASSERT_OK_AND_ASSIGN(const v1::JobInfo after, cluster.Info("names"));
    EXPECT_EQ(after.progress().state(), v1::JOB_STATE_RUNNING);
  }
}

TEST(WallClockTest, LosesNobodyWhenItIsSet) {
  ProcessCluster cluster(/*lease_ms=*/5'000);
  TrainingJob job = cluster.Job();
  job.steps = 1'000'000;
  ASSERT_OK(cluster.Submit(job));
  ASSERT_TRUE(cluster.AwaitStep(5));
  for (const int64_t seconds : {30, -3600}) {
    cluster.SetClock(seconds);
    // Within 10 more steps every member has sent something.
    ASSERT_OK_AND_ASSIGN(const v1::JobInfo info, cluster.Info("names"));
    ASSERT_TRUE(cluster.AwaitStep(info.progress().step() + 10));
  }
  ASSERT_OK_AND_ASSIGN(const v1::JobInfo info, cluster.Info("names"));
  EXPECT_EQ(info.progress().state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(info.progress().attempt(), 1);
}

TEST(TrainingTextTest, ALostFileEndsTheJobByItsName) {
  ProcessCluster cluster(kLeaseMs);
  TrainingJob job = cluster.Job();
  const std::string text = job.checkpoint.directory + ".tsv";
  std::filesystem::copy_file(job.data.train_path, text);
  job.data.train_path = text;
  job.steps = 1000;
  ASSERT_OK(cluster.Submit(job));
  ASSERT_TRUE(cluster.AwaitStep(5));
  std::filesystem::remove(text);
  // The next attempt is the first to notice that the file is missing.
  cluster.Kill("worker-0");
  ASSERT_OK_AND_ASSIGN(const v1::JobProgress last, cluster.AwaitEnd("names"));
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_FALSE(last.retryable());
  EXPECT_THAT(last.status().message(), ::testing::HasSubstr(text));
}

TEST(ShortPauseTest, LosesNobody) {
  // Long enough that a busy machine does not look paused.
  ProcessCluster cluster(/*lease_ms=*/5'000);
  ASSERT_OK(cluster.Submit(cluster.Job()));
  for (const char* name : {"router-0", "worker-2"}) {
    cluster.Pause(name);
    EXPECT_TRUE(Eventually([&] {
      const auto state = cluster.Describe();
      if (!state.ok()) return false;
      for (const v1::Member& member : state->members()) {
        if (member.name() == name) return member.silent_ms() > 2'500;
      }
      return true;  // lost
    }));
    cluster.GoOn(name);
  }
  ASSERT_OK_AND_ASSIGN(const v1::JobProgress last, cluster.AwaitEnd("names"));
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 1);
  ASSERT_OK_AND_ASSIGN(const v1::DescribeResponse state, cluster.Describe());
  EXPECT_EQ(state.members_size(), 5);
}

}  // namespace
}  // namespace gshard
