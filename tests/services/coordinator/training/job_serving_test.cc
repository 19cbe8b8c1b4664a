// A job whose model is served when it has been trained.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(JobServingTest, WritesCurvesAndServesWhatItTrained) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.summary_directory = cluster.scratch / "summary";
  job.serve_as = "translator";
  FakeMember& router = cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.logit_magnitude(), 8.5);
  EXPECT_EQ(last.gate_logit_magnitude(), 2.5);
  ASSERT_OK_AND_ASSIGN(const auto files, ListDirectory(job.summary_directory));
  ASSERT_EQ(files.size(), 1u);
  const std::string events = Slurp(job.summary_directory + "/" + files.front());
  for (const char* tag :
       {"train/loss", "train/balance_loss", "train/overflow_ratio",
        "train/tokens_per_second", "train/learning_rate", "train/gradient_norm",
        "train/logit_magnitude", "gate_logit_magnitude/"}) {
    EXPECT_TRUE(absl::StrContains(events, tag)) << tag;
  }
  const v1::DescribeResponse state = cluster.Describe();
  ASSERT_EQ(state.sessions_size(), 1);
  EXPECT_EQ(state.sessions(0).session(), "translator@3");
  EXPECT_EQ(state.sessions(0).state(), v1::SessionInfo::READY);
  EXPECT_EQ(router.last_load().router().checkpoint_directory(),
            last.checkpoint_directory());
  EXPECT_GT(worker.last_load().worker().segments_size(), 0);
  router.WaitFor("unload demo/1");
}

// Holds the shard of the last checkpoint until the test lets go of it.
class HeldLastShard {
 public:
  FakeMember::Intercept At(int64_t step) {
    return [this, step](
               const v1::Command& command) -> std::optional<v1::CommandReply> {
      if (command.has_write_checkpoint() &&
          command.write_checkpoint().step() == step) {
        reached_.set_value();
        released_.wait();
      }
      return std::nullopt;
    };
  }
  void Await() { reached_.get_future().wait(); }
  void Release() { release_.set_value(); }

 private:
  std::promise<void> reached_, release_;
  std::shared_future<void> released_ = release_.get_future().share();
};

// Returns when a job that is to be served has trained and waits for a router.
void TrainAndLoseTheRouter(FakeCluster& cluster) {
  TrainingJob job = cluster.MakeJob();
  job.serve_as = "translator";
  HeldLastShard held;
  FakeMember& router = cluster.AddRouter("r");
  cluster.AddWorker("w", held.At(job.steps));
  ASSERT_OK(cluster.Submit(job));
  held.Await();
  router.Leave();
  while (cluster.Describe().members_size() > 1) std::this_thread::yield();
  held.Release();
  const auto waiting = cluster.Watch("demo", [](const auto& progress) {
    return absl::StrContains(progress.status().message(),
                             "0 routers (1 needed)");
  });
  ASSERT_FALSE(waiting.back().checkpoint_directory().empty());
}

TEST(JobServingTest, WhatItTrainedIsServedOnceThereIsARouter) {
  FakeCluster cluster;
  TrainAndLoseTheRouter(cluster);
  cluster.AddRouter("other");
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ASSERT_EQ(cluster.Describe().sessions_size(), 1);
  EXPECT_EQ(cluster.Describe().sessions(0).session(), "translator@3");
}

TEST(JobServingTest, ALossWhileItIsLoadedIsWaitedFor) {
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before ? "before the load" : "in the load");
    FakeCluster cluster;
    TrainingJob job = cluster.MakeJob();
    job.serve_as = "translator";
    job.recovery.replacement_wait_ms = 0;
    Hold hold;
    cluster.AddRouter("r");
    FakeMember& lost =
        cluster.AddWorker("w", hold.At([&](const v1::Command& command) {
          return before ? command.has_unload_session()
                        : command.has_load_session() &&
                              !command.load_session().training();
        }));
    ASSERT_OK(cluster.Submit(job));
    hold.Lose(cluster, lost);
    const auto waiting = cluster.Watch("demo", [](const auto& progress) {
      return absl::StrContains(progress.status().message(),
                               "0 expert workers (1 needed)");
    });
    EXPECT_EQ(waiting.back().state(), v1::JOB_STATE_RECOVERING);
    cluster.AddWorker("other");
    const v1::JobProgress last = cluster.Watch("demo").back();
    EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    ASSERT_EQ(cluster.Describe().sessions_size(), 1);
    EXPECT_EQ(cluster.Describe().sessions(0).session(), "translator@3");
  }
}

// Trains and serves translator@3, and then trains what is to replace it.
void SubmitAReplacement(FakeCluster& cluster) {
  TrainingJob job = cluster.MakeJob("first");
  job.serve_as = "translator";
  ASSERT_OK(cluster.Submit(job));
  ASSERT_EQ(cluster.Watch("first").back().state(), v1::JOB_STATE_SUCCEEDED);
  job = cluster.MakeJob("second");
  job.serve_as = "translator";
  ASSERT_OK(cluster.Submit(job));
}

// Holds up a load of the replacement, or the switch to it.
FakeMember::Intercept HoldsUp(v1::Command::ActionCase action,
                              std::promise<void>* reached,
                              std::shared_future<void> released) {
  return [=](const v1::Command& command) -> std::optional<v1::CommandReply> {
    if (command.action_case() == action &&
        absl::StartsWith(SessionOf(command), "translator@3-2")) {
      reached->set_value();
      released.wait();
    }
    return std::nullopt;
  };
}

TEST(JobServingTest, ACancelledJobReplacesNothing) {
  FakeCluster cluster;
  std::promise<void> reached, release;
  FakeMember& router = cluster.AddRouter("r");
  FakeMember& worker =
      cluster.AddWorker("w", HoldsUp(v1::Command::kLoadSession, &reached,
                                     release.get_future().share()));
  ASSERT_NO_FATAL_FAILURE(SubmitAReplacement(cluster));
  reached.get_future().wait();
  ASSERT_OK(cluster.Cancel("second"));
  EXPECT_EQ(cluster.Watch("second").back().state(), v1::JOB_STATE_CANCELLED);
  release.set_value();
  worker.WaitFor("unload translator@3-2");
  ASSERT_EQ(cluster.Describe().sessions_size(), 1);
  EXPECT_EQ(cluster.Describe().sessions(0).session(), "translator@3");
  EXPECT_THAT(router.commands(), Not(Contains("load translator@3-2")));
}

// All routers have the model, which is in the store.
TEST(JobServingTest, ACancelThatComesTooLateChangesNothing) {
  FakeCluster cluster;
  std::promise<void> reached, release;
  cluster.AddRouter("r", HoldsUp(v1::Command::kUpdatePlacement, &reached,
                                 release.get_future().share()));
  cluster.AddWorker("w");
  ASSERT_NO_FATAL_FAILURE(SubmitAReplacement(cluster));
  reached.get_future().wait();
  ASSERT_OK(cluster.Cancel("second"));
  EXPECT_EQ(cluster.Watch("second").back().state(), v1::JOB_STATE_SUCCEEDED);
  release.set_value();
}

// It could not be resumed, since nothing is left to train.
TEST(JobServingTest, AStopWhileItWaitsForARouterLeavesAJobThatIsDone) {
  FakeCluster cluster;
  TrainAndLoseTheRouter(cluster);
  cluster.coordinator().Drain(absl::Minutes(1));
  const v1::DescribeResponse state =
      cluster.coordinator().Describe(v1::DescribeRequest(), {});
  ASSERT_EQ(state.jobs_size(), 1);
  EXPECT_EQ(state.jobs(0).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(state.jobs(0).status().message(), "");
}

// The worker may have no memory for both.
TEST(JobServingTest, WhatItTrainedIsServedOnceItsSessionIsGone) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.serve_as = "translator";
  std::promise<void> reached, release;
  auto released = release.get_future().share();
  FakeMember& router = cluster.AddRouter("r");
  cluster.AddWorker(
      "w", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_unload_session()) {
          reached.set_value();
          released.wait();
        }
        return std::nullopt;
      });
  ASSERT_OK(cluster.Submit(job));
  reached.get_future().wait();
  router.WaitFor("unload demo/1");
  // Comes behind a load that does not wait.
  EXPECT_THAT(cluster.UnloadModel("translator"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("translator")));
  release.set_value();
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
}

// Nor is a router waited for that has joined late and reads the text for hours.
TEST(JobServingTest, ALoadThatIsNotNeededAnyMoreIsEnded) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.serve_as = "translator";
  HeldLastShard held;
  cluster.AddRouter("r");
  cluster.AddWorker("w", held.At(job.steps));
  ASSERT_OK(cluster.Submit(job));
  held.Await();
  std::promise<void> asked;
  std::promise<FakeMember*> made;
  const auto late = made.get_future().share();
  made.set_value(&cluster.AddRouter(
      "late",
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.load_session().training()) return std::nullopt;
        asked.set_value();
        late.get()->WaitForInterrupt("demo/1");
        return ReplyWith(absl::CancelledError("interrupted"));
      }));
  asked.get_future().wait();
  held.Release();
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
}

TEST(JobServingTest, AStopBeforeItIsServedLeavesThatToTheNextCoordinator) {
  FakeCluster cluster({}, /*keep=*/true);
  TrainingJob job = cluster.MakeJob();
  job.serve_as = "translator";
  HeldLastShard held;
  cluster.AddRouter("r");
  cluster.AddWorker("w", held.At(job.steps));
  ASSERT_OK(cluster.Submit(job));
  held.Await();
  std::thread drain([&] { cluster.coordinator().Drain(absl::Minutes(1)); });
  // Once it drains it takes no job, not even to say what is wrong with it.
  TrainingJob wrong = cluster.MakeJob("wrong");
  wrong.steps = -1;
  while (!absl::IsUnavailable(cluster.Submit(wrong))) std::this_thread::yield();
  held.Release();
  drain.join();
  cluster.RestartCoordinator();
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ASSERT_EQ(cluster.Describe().sessions_size(), 1);
  EXPECT_EQ(cluster.Describe().sessions(0).session(), "translator@3");
}

}  // namespace
}  // namespace gshard
