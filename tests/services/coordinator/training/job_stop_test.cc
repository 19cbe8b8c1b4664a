// A stop of the whole system, or of all that a job needs to go on, loses the
// open step only.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// No checkpoint except the last.
TrainingJob StoppedJob(const FakeCluster& cluster) {
  TrainingJob job = cluster.MakeJob();
  job.steps = 5;
  job.checkpoint.every_steps = 0;
  job.min_workers = 2;
  // Neither a stop nor a worker that leaves uses one up.
  job.recovery.max_recoveries = 0;
  return job;
}

// Stops the coordinator, and takes away the router that `hold` holds.
void StopWithoutRouter(FakeCluster& cluster, Hold& hold, FakeMember& router) {
  hold.WaitUntilHeld();
  std::thread drain([&] { cluster.coordinator().Drain(absl::Minutes(10)); });
  hold.Lose(cluster, router);
  drain.join();
}

TEST(JobStopTest, WithoutRoutersAStopKeepsWhatIsCommitted) {
  for (const bool durable : {true, false}) {
    SCOPED_TRACE(durable);
    FakeCluster cluster({}, /*keep=*/durable);
    TrainingJob job = StoppedJob(cluster);
    // The stop waits for nobody; a restored job does, for its members.
    job.recovery.replacement_wait_ms = durable ? 100 : 3'600'000;
    Hold hold;
    FakeMember& router = cluster.AddRouter("r", hold.At(IsAssign(3)));
    FakeMember& worker = cluster.AddWorker("w0");
    cluster.AddWorker("w1");
    ASSERT_OK(cluster.Submit(job));
    StopWithoutRouter(cluster, hold, router);
    const v1::DescribeResponse state =
        cluster.coordinator().Describe(v1::DescribeRequest(), {});
    ASSERT_EQ(state.jobs_size(), 1);
    const v1::JobProgress& stopped = state.jobs(0);
    EXPECT_EQ(stopped.state(),
              durable ? v1::JOB_STATE_QUEUED : v1::JOB_STATE_CANCELLED)
        << stopped.status().message();
    EXPECT_EQ(stopped.step(), 2);
    EXPECT_EQ(stopped.checkpoint_step(), 2);
    ExpectTrained(job, 2);
    cluster.RestartCoordinator();
    cluster.AddRouter("next");
    if (!durable) {
      ASSERT_OK(cluster.Submit(job, /*resume=*/true));
    }
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(worker.last_load().worker().step(), 2);
    ExpectTrained(job, 5);
  }
}

// The coordinator stays, or is told to stop after a delay.
TEST(JobStopTest, WithoutRoutersAWorkerLeavesWithoutALoss) {
  for (const bool worker_first : {true, false}) {
    SCOPED_TRACE(worker_first);
    FakeCluster cluster;
    TrainingJob job = StoppedJob(cluster);
    job.recovery.replacement_wait_ms = 0;
    Hold hold;
    FakeMember& router = cluster.AddRouter("r", hold.At(IsAssign(3)));
    FakeMember& leaves = cluster.AddWorker("w0");
    FakeMember& stays = cluster.AddWorker("w1");
    ASSERT_OK(cluster.Submit(job));
    hold.WaitUntilHeld();
    if (!worker_first) hold.Lose(cluster, router);
    ASSERT_OK(leaves.AwaitMayLeave());
    if (worker_first) hold.Lose(cluster, router);
    leaves.WaitFor("abort demo/1");
    ExpectTrained(job, 2);
    leaves.Leave();
    const auto waiting = cluster.Watch("demo", [](const auto& progress) {
      return absl::StrContains(
          progress.status().message(),
          "0 routers (1 needed) and 1 expert workers (1 needed)");
    });
    EXPECT_EQ(waiting.back().state(), v1::JOB_STATE_RECOVERING);
    cluster.AddRouter("next");
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(last.attempt(), 2);
    EXPECT_EQ(stays.last_load().worker().step(), 2);
    ExpectTrained(job, 5);
  }
}

TEST(JobStopTest, AModelWithoutExpertsIsKeptToo) {
  FakeCluster cluster({}, /*keep=*/true);
  TrainingJob job = StoppedJob(cluster);
  job.model.experts = 0;
  Hold hold;
  FakeMember& router = cluster.AddRouter("r", hold.At(IsAssign(3)));
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  ASSERT_OK(cluster.Submit(job));
  StopWithoutRouter(cluster, hold, router);
  ExpectTrained(job, 2);
}

// It has never had what it asks for, under this submission.
TEST(JobStopTest, AfterARestartAJobStillWaitsForItsFirstMembers) {
  for (const bool resumed : {false, true}) {
    SCOPED_TRACE(resumed);
    FakeCluster cluster({}, /*keep=*/true);
    TrainingJob job = StoppedJob(cluster);
    cluster.AddRouter("r");
    FakeMember& first = cluster.AddWorker("w0");
    if (resumed) {
      job.min_workers = 1;
      job.steps = 2;
      ASSERT_OK(cluster.Submit(job));
      ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
      job.min_workers = 2;
      job.steps = 5;
    }
    ASSERT_OK(cluster.Submit(job, resumed));
    const auto waits = [](const v1::JobProgress& p) {
      return absl::StrContains(p.status().message(),
                               "1 expert workers (2 needed)");
    };
    cluster.Watch("demo", waits);
    cluster.RestartCoordinator();
    ASSERT_EQ(cluster.Watch("demo", waits).back().state(),
              v1::JOB_STATE_WAITING);
    FakeMember& second = cluster.AddWorker("w1");
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_THAT(first.last_load().worker().experts(), ElementsAre(0, 1));
    EXPECT_THAT(second.last_load().worker().experts(), ElementsAre(2));
    ExpectTrained(job, 5);
  }
}

// It has had them, though no step of it is recorded yet.
TEST(JobStopTest, AfterARestartAJobDoesWithoutAFirstMember) {
  FakeCluster cluster({}, /*keep=*/true);
  TrainingJob job = StoppedJob(cluster);
  job.recovery.replacement_wait_ms = 0;
  cluster.AddRouter("r");
  Hold hold;
  FakeMember& first = cluster.AddWorker(
      "w0", hold.At([](const auto& c) { return c.has_prepare_step(); }));
  FakeMember& second = cluster.AddWorker("w1");
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  cluster.RestartCoordinator([&] { second.Leave(); });
  hold.Release();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_THAT(first.last_load().worker().experts(), ElementsAre(0, 1, 2));
  ExpectTrained(job, 5);
}

// The job is told so when it has decided to go on in the next coordinator, and
// gives its folder back.
TEST(JobStopTest, ACancelThatComesAfterAStopIsKept) {
  FakeObjectStore store;
  store.Use();
  FakeCluster cluster({}, /*keep=*/true);
  TrainingJob job = cluster.MakeJob();
  job.checkpoint.directory = "s3://bucket/demo";
  ASSERT_OK(cluster.Submit(job));
  cluster.Watch("demo", [](const v1::JobProgress& line) {
    return absl::StrContains(line.status().message(), "waits for members");
  });
  std::promise<void> reached, go_on;
  auto may_go_on = go_on.get_future().share();
  std::atomic<bool> first = true;
  store.SetOnRequest([&](const std::string& request) {
    if (absl::StartsWith(request, "PUT") &&
        absl::StrContains(request, "owner.json") && first.exchange(false)) {
      reached.set_value();
      may_go_on.wait();
    }
    return FakeObjectStore::Fault::kNone;
  });
  std::thread drain([&] { cluster.coordinator().Drain(absl::Minutes(1)); });
  reached.get_future().wait();
  v1::CancelJobRequest cancel;
  cancel.set_job("demo");
  std::promise<absl::Status> cancelled;
  cluster.coordinator().CancelJob(
      cancel, {}, [&](const absl::StatusOr<v1::CancelJobResponse>& response) {
        cancelled.set_value(response.status());
      });
  // Answered behind it.
  EXPECT_THAT(cluster.Submit(cluster.MakeJob("late")),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting")));
  go_on.set_value();
  EXPECT_OK(cancelled.get_future().get());
  drain.join();
  cluster.RestartCoordinator();
  ASSERT_EQ(cluster.Describe().jobs_size(), 1);
  EXPECT_EQ(cluster.Describe().jobs(0).state(), v1::JOB_STATE_CANCELLED);
}

TEST(JobStopTest, AJobThatDoesNotStopInTimeIsHaltedWithAWarning) {
  FakeCluster cluster({}, /*keep=*/true);
  const TrainingJob job = StoppedJob(cluster);
  cluster.AddRouter("r");
  Hold hold;
  cluster.AddWorker("w0", hold.At(IsPrepare(3)));
  cluster.AddWorker("w1");
  ASSERT_OK(cluster.Submit(job));
  hold.WaitUntilHeld();
  ::testing::internal::CaptureStderr();
  cluster.coordinator().Drain(absl::Milliseconds(1));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("\"severity\":\"WARNING\",\"message\":\"a job has not "
                      "stopped in time and is halted: whoever continues it "
                      "repeats its steps since the last checkpoint\""),
            HasSubstr("\"job\":\"demo\",\"drain_time\":\"1ms\"")));
  hold.Release();
  cluster.RestartCoordinator();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 5);
}

}  // namespace
}  // namespace gshard
