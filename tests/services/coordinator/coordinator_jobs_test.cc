// The queue of jobs, and how a restarted coordinator treats them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/config/training_job_proto.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/limited_job.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

absl::StatusOr<v1::ListJobsResponse> List(FakeCluster& cluster,
                                          const std::string& job = "") {
  grpc::ClientContext context;
  SetDeadline(context, std::chrono::minutes(1));
  v1::ListJobsRequest request;
  request.set_job(job);
  request.set_include_history(true);
  v1::ListJobsResponse response;
  const grpc::Status status =
      cluster.stub().ListJobs(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

// The states with their attempts: "QUEUED/0", "RUNNING/1", ...
std::vector<std::string> History(const v1::JobInfo& info) {
  std::vector<std::string> states;
  for (const v1::JobChange& change : info.history()) {
    states.push_back(absl::StrCat(
        v1::JobState_Name(change.state()).substr(sizeof("JOB_STATE_") - 1), "/",
        change.attempt()));
  }
  return states;
}

TEST(CoordinatorJobsTest, JobsQueueInOrder) {
  FakeCluster cluster;
  ASSERT_OK(cluster.Submit(cluster.MakeJob("a")));  // waits for members
  ASSERT_OK(cluster.Submit(cluster.MakeJob("b")));
  ASSERT_OK(cluster.Submit(cluster.MakeJob("c")));
  TrainingJob same_folder = cluster.MakeJob("d");
  same_folder.checkpoint.directory = cluster.MakeJob("c").checkpoint.directory;
  EXPECT_THAT(cluster.Submit(same_folder),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("is that of job 'c'")));
  EXPECT_THAT(
      cluster.Submit(cluster.MakeJob("b")),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("is not over")));
  ASSERT_OK(cluster.Cancel("b"));
  cluster.Watch(
      "a", [](const auto& p) { return p.state() == v1::JOB_STATE_WAITING; });
  ASSERT_OK_AND_ASSIGN(v1::ListJobsResponse jobs, List(cluster));
  ASSERT_EQ(jobs.jobs_size(), 3);
  EXPECT_EQ(jobs.jobs(0).progress().state(), v1::JOB_STATE_WAITING);
  EXPECT_EQ(jobs.jobs(1).progress().state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(jobs.jobs(2).progress().state(), v1::JOB_STATE_QUEUED);

  FakeMember& router = cluster.AddRouter("r");
  cluster.AddWorker("w");
  EXPECT_EQ(cluster.Watch("c").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(router.commands(), Contains("load a/1"));
  ASSERT_OK_AND_ASSIGN(jobs, List(cluster, "c"));
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_THAT(History(jobs.jobs(0)),
              ElementsAre("QUEUED/0", "WAITING/1", "RUNNING/1", "SUCCEEDED/1"));
  EXPECT_GT(jobs.jobs(0).submitted_unix_micros(), 0);
  EXPECT_EQ(jobs.jobs(0).progress().step(), 3);
  EXPECT_THAT(List(cluster, "x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'x'")));
}

TEST(CoordinatorJobsTest, AJobThatIsOnlyValidatedIsNotQueued) {
  FakeCluster cluster;
  const auto validate = [&](const TrainingJob& job) {
    v1::SubmitJobRequest request;
    *request.mutable_job() = TrainingJobToProto(job);
    request.set_validate_only(true);
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::minutes(1));
    v1::SubmitJobResponse response;
    return FromGrpcStatus(
        cluster.stub().SubmitJob(&context, request, &response));
  };
  TrainingJob job = cluster.MakeJob("a");
  EXPECT_OK(validate(job));
  EXPECT_EQ(cluster.Describe().jobs_size(), 0);
  EXPECT_FALSE(IsDirectory(job.checkpoint.directory));
  EXPECT_OK(cluster.Submit(job));
  EXPECT_THAT(validate(job), StatusIs(absl::StatusCode::kAlreadyExists,
                                      HasSubstr("is not over")));
  TrainingJob other = cluster.MakeJob("b");
  other.data.train_path += "none";
  EXPECT_THAT(validate(other), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("data.train_path")));
  // The names of its files take more than its text may.
  other = cluster.MakeJob("b");
  const std::string texts = cluster.scratch / "texts";
  std::filesystem::create_directory(texts);
  for (int i = 0; i < 100; ++i) {
    Spill(absl::StrCat(texts, "/", i, std::string(200, 'x')), "de\ta\tb\n");
  }
  other.data.train_files.assign(60, {texts + "/*", "", 1.0});
  const auto is_too_long = StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("6000 files written out"));
  EXPECT_THAT(validate(other), is_too_long);
  EXPECT_THAT(cluster.Submit(other), is_too_long);
}

TEST(CoordinatorJobsTest, JobsAreCountedByState) {
  Metrics metrics("coordinator", "1");
  TrainingMetrics of_jobs(metrics, /*per_expert=*/false);
  FakeCluster cluster({.metrics = &of_jobs}, /*keep=*/true);
  const auto expect = [&](const std::string& series) {
    EXPECT_THAT(metrics.Serialize(),
                HasSubstr("\ngshard_jobs" + series + "\n"));
  };
  const auto await = [&](const std::string& job, v1::JobState state) {
    cluster.Watch(job, [&](const auto& p) { return p.state() == state; });
  };
  expect("_ended_total{state=\"failed\"} 0");
  ASSERT_OK(cluster.Submit(cluster.MakeJob("done")));
  await("done", v1::JOB_STATE_WAITING);
  ASSERT_OK(cluster.Submit(cluster.MakeJob("fails")));
  ASSERT_OK(cluster.Submit(cluster.MakeJob("cancelled")));
  expect("{state=\"waiting\"} 1");
  expect("{state=\"queued\"} 2");
  ASSERT_OK(cluster.Cancel("cancelled"));
  expect("_ended_total{state=\"cancelled\"} 1");
  cluster.AddRouter(
      "r", [](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.load_session().session() != "fails/1") return std::nullopt;
        return ReplyWith(absl::InternalError("oops"));
      });
  cluster.AddWorker("w");
  ::testing::internal::CaptureStderr();
  await("fails", v1::JOB_STATE_FAILED);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("\"severity\":\"ERROR\",\"message\":\"job failed\""));
  for (const char* state : {"queued", "waiting", "running", "recovering"}) {
    expect(absl::StrCat("{state=\"", state, "\"} 0"));
  }
  for (const char* state : {"succeeded", "failed", "cancelled"}) {
    expect(absl::StrCat("_ended_total{state=\"", state, "\"} 1"));
  }
  // What ended before counts no more.
  cluster.RestartCoordinator();
  ASSERT_OK(List(cluster).status());
  expect("_ended_total{state=\"failed\"} 1");
}

// Old jobs are forgotten beyond kMaxJobs, whether or not they ran. A job that
// is not over stays.
TEST(CoordinatorJobsTest, OldJobsAreForgotten) {
  FakeCluster cluster({}, /*keep=*/true);
  const auto name = [](int64_t i) { return absl::StrCat("job-", i); };
  std::weak_ptr<ProgressFeed> first;
  for (int64_t i = 0; i < kMaxJobs + 5; ++i) {
    if (i == 3) {  // it is resubmitted
      ASSERT_OK(cluster.Submit(cluster.MakeJob("stays")));
      ASSERT_OK(cluster.Cancel("stays"));
      ASSERT_OK(cluster.Submit(cluster.MakeJob("stays"), /*resume=*/true));
    }
    ASSERT_OK(cluster.Submit(cluster.MakeJob(name(i))));
    if (i == 0) first = *cluster.coordinator().WatchJob(name(0), {});
    ASSERT_OK(cluster.Cancel(name(i)));
  }
  ASSERT_OK(cluster.Submit(cluster.MakeJob("last")));
  EXPECT_TRUE(first.expired());
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted);
    if (restarted) {
      cluster.RestartCoordinator([&] {
        ASSERT_OK_AND_ASSIGN(const auto store,
                             JobStore::Open(cluster.scratch / "state"));
        EXPECT_EQ(std::ssize(*store->Jobs()), kMaxJobs + 2);
      });
    }
    ASSERT_OK_AND_ASSIGN(const v1::ListJobsResponse jobs, List(cluster));
    ASSERT_EQ(jobs.jobs_size(), kMaxJobs + 2);
    EXPECT_EQ(jobs.jobs(0).progress().job(), "stays");
    EXPECT_EQ(jobs.jobs(1).progress().job(), name(5));
    EXPECT_THAT(jobs.jobs(1).history(), SizeIs(2));
    EXPECT_EQ(jobs.jobs(kMaxJobs + 1).progress().job(), "last");
    EXPECT_THAT(List(cluster, name(4)),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("job-4")));
  }
}

// A resubmitted job is listed once, in its new place.
TEST(CoordinatorJobsTest, AJobThatIsRunAgainIsListedOnce) {
  FakeCluster cluster;
  ASSERT_OK(cluster.Submit(cluster.MakeJob("runs")));
  ASSERT_OK(cluster.Submit(cluster.MakeJob("again")));
  ASSERT_OK(cluster.Submit(cluster.MakeJob("waits")));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(cluster.Cancel("again"));
    ASSERT_OK(cluster.Submit(cluster.MakeJob("again"), /*resume=*/true));
    ASSERT_OK_AND_ASSIGN(const v1::ListJobsResponse jobs, List(cluster));
    ASSERT_EQ(jobs.jobs_size(), 3);
    EXPECT_EQ(jobs.jobs(1).progress().job(), "waits");
    EXPECT_EQ(jobs.jobs(2).progress().job(), "again");
    EXPECT_EQ(jobs.jobs(2).progress().state(), v1::JOB_STATE_QUEUED);
    const v1::DescribeResponse state = cluster.coordinator().Describe({}, {});
    ASSERT_EQ(state.jobs_size(), 3);
    EXPECT_EQ(state.jobs(2).job(), "again");
  }
}

TEST(CoordinatorJobsTest, ARestartGoesOnFromTheLastCheckpoint) {
  FakeCluster cluster({}, /*keep=*/true);
  TrainingJob job = cluster.MakeJob();
  job.steps = 5;
  job.checkpoint.every_steps = 2;
  FakeMember& router = cluster.AddRouter("r");
  std::promise<void> reached, go_on;
  auto may_go_on = go_on.get_future().share();
  std::atomic<bool> first{true};
  cluster.AddWorker(
      "w", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (c.has_prepare_step() && c.prepare_step().step() == 4 &&
            first.exchange(false)) {
          reached.set_value();
          may_go_on.wait();
        }
        return std::nullopt;
      });
  ASSERT_OK(cluster.Submit(job));
  ASSERT_OK(cluster.Submit(cluster.MakeJob("next")));
  reached.get_future().wait();
  cluster.RestartCoordinator();
  go_on.set_value();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 4);
  ExpectTrained(job, 5);
  EXPECT_THAT(router.commands(), Contains("load demo/2"));
  EXPECT_EQ(cluster.Watch("next").back().state(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_OK_AND_ASSIGN(const v1::ListJobsResponse jobs, List(cluster));
  ASSERT_EQ(jobs.jobs_size(), 2);
  EXPECT_THAT(History(jobs.jobs(0)),
              ElementsAre("QUEUED/0", "WAITING/1", "RUNNING/1", "QUEUED/1",
                          "RECOVERING/2", "RUNNING/2", "SUCCEEDED/2"));
  EXPECT_THAT(jobs.jobs(0).history(3).cause().message(),
              HasSubstr("started again"));
  // A finished job is not run again.
  cluster.RestartCoordinator();
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(cluster.Submit(job),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("resume")));
  EXPECT_OK(cluster.Cancel("demo"));
}

// A coordinator that shuts down ends its members' streams. The job must not
// take them for lost members: that would count a recovery and might fail it.
TEST(CoordinatorJobsTest, ACoordinatorThatEndsLosesNoMembers) {
  FakeCluster cluster({}, /*keep=*/true);
  TrainingJob job = cluster.MakeJob();
  job.recovery.max_recoveries = 0;
  cluster.AddRouter("r");
  std::promise<void> reached, go_on;
  auto may_go_on = go_on.get_future().share();
  std::atomic<bool> first{true};
  cluster.AddWorker(
      "w", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (c.has_prepare_step() && first.exchange(false)) {
          reached.set_value();
          may_go_on.wait();
        }
        return std::nullopt;
      });
  ASSERT_OK(cluster.Submit(job));
  reached.get_future().wait();
  cluster.coordinator().Drain(absl::ZeroDuration());
  cluster.coordinator().Shutdown();  // waits for the job's thread
  v1::ListJobsRequest list;
  list.set_include_history(true);
  const absl::StatusOr<v1::ListJobsResponse> jobs =
      cluster.coordinator().ListJobs(list, {});
  ASSERT_OK(jobs.status());
  EXPECT_THAT(History(jobs->jobs(0)),
              ElementsAre("QUEUED/0", "WAITING/1", "RUNNING/1"));
  go_on.set_value();
}

TEST(CoordinatorJobsTest, AnOrderlyStopParksTheJob) {
  FakeCluster cluster({}, /*keep=*/true);
  TrainingJob job = cluster.MakeJob();
  job.steps = 60;
  std::promise<void> running, stopping;
  auto may_go_on = stopping.get_future().share();
  std::atomic<bool> first{true};
  cluster.AddRouter(
      "r", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (c.has_assign_microbatch() && c.assign_microbatch().step() == 3 &&
            first.exchange(false)) {
          running.set_value();
          may_go_on.wait();
        }
        return std::nullopt;
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  running.get_future().wait();
  std::thread drain([&] { cluster.coordinator().Drain(absl::Minutes(1)); });
  while (!absl::IsUnavailable(cluster.Submit(cluster.MakeJob("late")))) {
    std::this_thread::yield();
  }
  stopping.set_value();
  drain.join();
  const v1::DescribeResponse state =
      cluster.coordinator().Describe(v1::DescribeRequest(), {});
  ASSERT_GE(state.jobs_size(), 1);
  EXPECT_EQ(state.jobs(0).state(), v1::JOB_STATE_QUEUED);
  const int64_t step = state.jobs(0).checkpoint_step();
  EXPECT_GE(step, 3);
  ExpectTrained(job, step);
  cluster.RestartCoordinator();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ExpectTrained(job, 60);
}

TEST(CoordinatorJobsTest, ARestartKeepsTheTimeThatWasUsed) {
  LimitedJob limited([](int64_t) { return 25; }, /*keep=*/true);
  limited.job.checkpoint.every_steps = 1;
  limited.job.checkpoint.asynchronous = false;  // step 1's exists in step 2
  const v1::JobProgress last = limited.Train(IsPrepare(2));
  EXPECT_EQ(last.step(), 3);
  EXPECT_EQ(last.elapsed_seconds(), 75);
}

// The last checkpoint is written, but members have not released the job yet.
TEST(CoordinatorJobsTest, ARestartKeepsTheStepAtWhichTheTimeWasUp) {
  for (const int64_t cooldown : {0, 12}) {
    SCOPED_TRACE(cooldown);
    LimitedJob limited([](int64_t) { return 25; }, /*keep=*/true);
    limited.job.schedule.cooldown_steps = cooldown;
    const v1::JobProgress last =
        limited.Train([](const auto& c) { return c.has_abort_session(); });
    EXPECT_EQ(last.step(), 3);
    EXPECT_EQ(last.total_steps(), 3);
    EXPECT_EQ(last.submitted_steps(), 1000);
    ExpectTrained(limited.job, 3);
  }
}

TEST(CoordinatorJobsTest, ARestartKeepsTheLastStepThatTheTimeLimitHasSet) {
  LimitedJob limited([](int64_t) { return 1; }, /*keep=*/true);
  TrainingJob& job = limited.job;
  job.schedule.cooldown_steps = 12;
  job.checkpoint.every_steps = 1;
  job.checkpoint.asynchronous = false;
  const v1::JobProgress last = limited.Train(IsPrepare(55));
  EXPECT_EQ(last.step(), 60);
  EXPECT_EQ(last.submitted_steps(), 1000);
  job.steps = 60;
  ExpectTrained(job, 60);
}

// A slow step before the cooldown leaves time for a short one.
TEST(CoordinatorJobsTest, ARestartKeepsTheCooldownThatTheTimeLimitHasSet) {
  LimitedJob limited([](int64_t step) { return step == 48 ? 5 : 1; },
                     /*keep=*/true);
  TrainingJob& job = limited.job;
  job.schedule.cooldown_steps = 12;
  job.checkpoint.every_steps = 1;
  job.checkpoint.asynchronous = false;
  const v1::JobProgress last = limited.Train(IsPrepare(50));
  job.steps = last.step();
  job.schedule.cooldown_steps = job.steps - 48;
  ASSERT_LT(job.schedule.cooldown_steps, 10);
  ExpectTrained(job, job.steps);
}

TEST(CoordinatorJobsTest, AStateDiskThatVanishesIsAClearError) {
  FakeCluster cluster({}, /*keep=*/true);
  ASSERT_OK(cluster.Submit(cluster.MakeJob("a")));
  std::filesystem::remove_all(cluster.scratch / "state");
  EXPECT_THAT(cluster.Submit(cluster.MakeJob("b")),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("coordinator.db"),
                             HasSubstr("is its disk there"))));
  // Accepted jobs continue.
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  EXPECT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(CoordinatorJobsTest, AnEndIsStoredOnceTheStateDiskIsBack) {
  FakeCluster cluster({.store_retry = absl::Milliseconds(1)}, /*keep=*/true);
  ASSERT_OK(cluster.Submit(cluster.MakeJob("a")));
  cluster.Watch(
      "a", [](const auto& p) { return p.state() == v1::JOB_STATE_WAITING; });
  const std::string state = cluster.scratch / "state";
  std::filesystem::rename(state, state + "-away");
  ASSERT_OK(cluster.Cancel("a"));
  std::filesystem::rename(state + "-away", state);
  const auto is_stored = [&] {
    const auto jobs = List(cluster, "a");
    return jobs.ok() && History(jobs->jobs(0)).back() == "CANCELLED/1";
  };
  while (!is_stored()) std::this_thread::yield();
  cluster.RestartCoordinator();
  EXPECT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_CANCELLED);
}

TEST(CoordinatorJobsTest, AJobThatCannotBeReadKeepsNoCoordinatorFromStarting) {
  FakeCluster cluster({}, /*keep=*/true);
  ASSERT_OK(cluster.Submit(cluster.MakeJob("a")));
  ASSERT_OK(cluster.Submit(cluster.MakeJob("b")));
  cluster.RestartCoordinator([&] {
    const auto database =
        Database::Open(cluster.scratch / "state/coordinator.db");
    ASSERT_OK(database);
    ASSERT_OK((*database)->Run(
        "UPDATE jobs SET job = 'steps: -1' WHERE name = ?", {"a"}));
  });
  const v1::JobProgress last = cluster.Watch("a").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(last.status().message(), HasSubstr("submit it again"));
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  EXPECT_EQ(cluster.Watch("b").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_OK(cluster.Submit(cluster.MakeJob("a"), /*resume=*/true));
  EXPECT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(CoordinatorJobsTest, AFullStateDiskKeepsNoCoordinatorFromStarting) {
  FakeCluster cluster({}, /*keep=*/true);
  ASSERT_OK(cluster.Submit(cluster.MakeJob("a")));
  cluster.Watch(
      "a", [](const auto& p) { return p.state() == v1::JOB_STATE_WAITING; });
  cluster.RestartCoordinator([&] {
    const auto database =
        Database::Open(cluster.scratch / "state/coordinator.db");
    ASSERT_OK(database);
    ASSERT_OK((*database)->Run(
        "CREATE TRIGGER full BEFORE UPDATE ON jobs BEGIN SELECT RAISE(ABORT, "
        "'no space'); END"));
  });
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  EXPECT_EQ(cluster.Watch("a").back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(CoordinatorJobsTest, ARestartServesWhatWasServed) {
  FakeCluster cluster({}, /*keep=*/true);
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  TrainingJob job = cluster.MakeJob();
  job.serve_as = "translator";
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ASSERT_OK(cluster.LoadModel("other", "b", last.checkpoint_directory()));
  ASSERT_OK(cluster.LoadModel("gone", "b", last.checkpoint_directory()));
  ASSERT_OK(cluster.UnloadModel("gone@b"));
  cluster.RestartCoordinator();
  const auto ready = [&](const char* session) {
    const v1::DescribeResponse state = cluster.coordinator().Describe({}, {});
    for (const v1::SessionInfo& info : state.sessions()) {
      if (info.session() == session) {
        return info.state() == v1::SessionInfo::READY;
      }
    }
    return false;
  };
  while (!ready("translator@3") || !ready("other@b")) {
    std::this_thread::yield();
  }
  EXPECT_EQ(cluster.coordinator().Describe({}, {}).sessions_size(), 2);
}

}  // namespace
}  // namespace gshard
