#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/fake_gradients.h"
#include "tests/services/coordinator/hold.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::TextLoaded Text(int32_t validation_microbatches) {
  v1::TextLoaded text;
  text.set_pairs(100);
  text.set_bad_lines(7);
  text.set_left_out_long(5);
  text.set_digest(std::string(64, 'a'));
  text.set_validation_microbatches(validation_microbatches);
  return text;
}

// The loss of `microbatches` microbatches with FakeValidationStats().
double FakeLoss(int64_t step, int microbatches) {
  double sum = 0.0;
  for (int m = 0; m < microbatches; ++m) {
    sum += 32.0 / static_cast<double>(step) + (m == 0 ? 1.0 : 0.0);
  }
  return sum / (4.0 * microbatches);
}

std::optional<double> RecordedLoss(const TrainingJob& job, int64_t step) {
  const auto reader =
      CheckpointReader::Open(CheckpointPath(job.checkpoint.directory, step));
  CHECK(reader.ok());
  return (*reader)->manifest().validation_loss;
}

std::vector<std::string> Validations(const FakeMember& router) {
  std::vector<std::string> out;
  for (const std::string& command : router.commands()) {
    if (absl::StartsWith(command, "validate ")) out.push_back(command);
  }
  return out;
}

class JobValidationTest : public ::testing::Test {
 protected:
  // Makes a router answer validation with this loss.
  FakeMember::Intercept LossOf(std::function<double(int64_t step)> loss) {
    return [loss, model = cluster_.MakeJob().model](
               const v1::Command& c) -> std::optional<v1::CommandReply> {
      const v1::AssignMicrobatch& assign = c.assign_microbatch();
      if (!assign.validation()) return std::nullopt;
      v1::CommandReply reply;
      auto* const stats = reply.mutable_microbatch_done()->mutable_stats();
      *stats = FakeValidationStats(model, assign.step(), 0);
      stats->set_loss_sum(4 * loss(assign.step()));
      return reply;
    };
  }

  FakeMember& AddRouter(const std::string& name, int32_t microbatches,
                        FakeMember::Intercept intercept = nullptr) {
    FakeMember& router = cluster_.AddRouter(name, std::move(intercept));
    router.SetText(Text(microbatches));
    return router;
  }

  FakeCluster cluster_;
};

TEST_F(JobValidationTest, MeasuresAtTheStepsThatAreDue) {
  FakeMember& router = AddRouter("r", 3);
  cluster_.AddWorker("w");
  TrainingJob job = cluster_.MakeJob();
  job.steps = 7;
  job.checkpoint.every_steps = 2;
  job.checkpoint.keep = 10;
  job.validation.every_steps = 3;
  ASSERT_OK(cluster_.Submit(job));
  std::map<int64_t, double> losses;
  for (const v1::JobProgress& line : cluster_.Watch("demo")) {
    if (line.validation_step() == 0) continue;
    losses[line.validation_step()] = line.validation_loss();
    EXPECT_DOUBLE_EQ(line.validation_overflow_ratio(), 0.2);
    EXPECT_EQ(line.best_validation_step(), line.validation_step());
    EXPECT_EQ(line.best_validation_loss(), line.validation_loss());
  }
  const v1::JobProgress last = cluster_.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  ASSERT_EQ(losses.size(), 5u);
  for (const int64_t step : {2, 3, 4, 6, 7}) {
    EXPECT_EQ(losses[step], FakeLoss(step, 3)) << step;
    if (step == 3) continue;
    EXPECT_EQ(RecordedLoss(job, step), losses[step]) << step;
  }
  EXPECT_THAT(
      Validations(router),
      ElementsAre("validate 2/0/0", "validate 2/1/0", "validate 2/2/0",
                  "validate 3/0/0", "validate 3/1/0", "validate 3/2/0",
                  "validate 4/0/0", "validate 4/1/0", "validate 4/2/0",
                  "validate 6/0/0", "validate 6/1/0", "validate 6/2/0",
                  "validate 7/0/0", "validate 7/1/0", "validate 7/2/0"));
  EXPECT_EQ(last.text_pairs(), 100);
  EXPECT_EQ(last.bad_lines(), 7);
  EXPECT_EQ(last.left_out_long(), 5);
  ExpectTrained(job, 7);
}

TEST_F(JobValidationTest, WithoutHeldOutTextThereIsNone) {
  FakeMember& router = AddRouter("r", 0);
  cluster_.AddWorker("w");
  TrainingJob job = cluster_.MakeJob();
  job.validation.every_steps = 1;
  ASSERT_OK(cluster_.Submit(job));
  const v1::JobProgress last = cluster_.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_THAT(Validations(router), IsEmpty());
  EXPECT_EQ(last.validation_step(), 0);
  EXPECT_EQ(RecordedLoss(job, 3), std::nullopt);
}

TEST_F(JobValidationTest, KeepsTheBestCheckpointAndMarksIt) {
  // The loss falls until step 3, then rises.
  AddRouter("r", 2, LossOf([](int64_t step) {
              return step <= 3 ? 5.0 - step : 0.5 * step;
            }));
  cluster_.AddWorker("w");
  TrainingJob job = cluster_.MakeJob();
  job.steps = 6;
  job.checkpoint.every_steps = 1;
  job.checkpoint.keep = 1;
  job.checkpoint.keep_best = 1;
  ASSERT_OK(cluster_.Submit(job));
  v1::JobProgress last = cluster_.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  const std::string& root = job.checkpoint.directory;
  ASSERT_OK_AND_ASSIGN(const auto paths, ListCheckpoints(root));
  EXPECT_THAT(paths,
              ElementsAre(CheckpointPath(root, 6), CheckpointPath(root, 3)));
  ASSERT_OK_AND_ASSIGN(const std::string best, BestCheckpoint(root));
  EXPECT_EQ(best, CheckpointPath(root, 3));
  EXPECT_EQ(last.validation_step(), 6);
  EXPECT_EQ(last.validation_loss(), 3.0);
  EXPECT_EQ(last.best_validation_step(), 3);
  EXPECT_EQ(last.best_validation_loss(), 2.0);

  // A resumed job knows the best validation.
  job.steps = 7;
  ASSERT_OK(cluster_.Submit(job, /*resume=*/true));
  last = cluster_.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.validation_loss(), 3.5);
  EXPECT_EQ(last.best_validation_step(), 3);
  EXPECT_EQ(last.best_validation_loss(), 2.0);
}

TEST_F(JobValidationTest, ALossThatIsNotFiniteIsNoneToKeepBy) {
  AddRouter("r", 1, LossOf([](int64_t step) {
              return step == 2 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
            }));
  cluster_.AddWorker("w");
  TrainingJob job = cluster_.MakeJob();
  job.checkpoint.every_steps = 1;
  ASSERT_OK(cluster_.Submit(job));
  const v1::JobProgress last = cluster_.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(RecordedLoss(job, 1), 1.0);
  EXPECT_EQ(RecordedLoss(job, 2), std::nullopt);
  EXPECT_EQ(last.best_validation_step(), 1);
}

TEST_F(JobValidationTest, ALostRoutersMicrobatchesGoToOthers) {
  std::promise<void> stuck, release;
  auto released = release.get_future().share();
  std::atomic<bool> first{true};
  FakeMember& lost = AddRouter(
      "lost", 4, [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.assign_microbatch().validation()) return std::nullopt;
        if (first.exchange(false)) stuck.set_value();
        released.wait();
        return ReplyWith(absl::CancelledError("left"));
      });
  FakeMember& stays = AddRouter("stays", 4);
  cluster_.AddWorker("w");
  TrainingJob job = cluster_.MakeJob();
  job.min_routers = 2;
  job.checkpoint.every_steps = 2;
  ASSERT_OK(cluster_.Submit(job));
  stuck.get_future().wait();
  std::thread leave([&] { lost.Leave(); });
  cluster_.Watch("demo", [&](const v1::JobProgress& progress) {
    return progress.step() >= 3;
  });
  release.set_value();
  leave.join();
  const v1::JobProgress last = cluster_.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 1);
  EXPECT_EQ(RecordedLoss(job, 2), FakeLoss(2, 4));
  EXPECT_THAT(Validations(stays), Contains("validate 2/0/1"));
  ExpectTrained(job, 3);
}

TEST_F(JobValidationTest, ALostWorkerBeginsAnotherAttempt) {
  FakeMember* worker = nullptr;
  std::promise<void> stuck, release;
  auto released = release.get_future().share();
  std::atomic<bool> first{true};
  AddRouter("r", 2,
            [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
              if (!c.assign_microbatch().validation()) return std::nullopt;
              if (!first.exchange(false)) return std::nullopt;
              stuck.set_value();
              released.wait();
              return ReplyWith(absl::UnavailableError("a worker is gone"));
            });
  worker = &cluster_.AddWorker("lost");
  cluster_.AddWorker("stays");
  TrainingJob job = cluster_.MakeJob();
  job.min_workers = 2;
  job.recovery.replacement_wait_ms = 0;
  job.checkpoint.every_steps = 2;
  ASSERT_OK(cluster_.Submit(job));
  stuck.get_future().wait();
  worker->Leave();
  release.set_value();
  const v1::JobProgress last = cluster_.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  EXPECT_EQ(RecordedLoss(job, 2), FakeLoss(2, 2));
  EXPECT_EQ(RecordedLoss(job, 3), FakeLoss(3, 2));
  ExpectTrained(job, 3);
}

// Nor does a worker that leaves, which would take what is trained with it.
TEST(ValidationStopTest, AStopDoesNotWaitForValidation) {
  for (const bool stops : {true, false}) {
    SCOPED_TRACE(stops ? "the coordinator stops" : "a worker leaves");
    std::promise<void> stuck, release;
    auto released = release.get_future().share();
    std::atomic<bool> first{true};
    FakeCluster cluster({}, /*keep=*/true);
    cluster
        .AddRouter(
            "r",
            [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
              if (c.assign_microbatch().validation() && first.exchange(false)) {
                stuck.set_value();
                released.wait();
              }
              return std::nullopt;
            })
        .SetText(Text(2));
    cluster.AddWorker("w0");
    FakeMember& worker = cluster.AddWorker("w1");
    TrainingJob job = cluster.MakeJob();
    job.steps = 5;
    job.min_workers = 2;
    job.checkpoint.every_steps = 2;
    job.recovery.replacement_wait_ms = 100;
    ASSERT_OK(cluster.Submit(job));
    stuck.get_future().wait();
    if (stops) {
      cluster.coordinator().Drain(absl::Minutes(1));
      const v1::DescribeResponse state =
          cluster.coordinator().Describe(v1::DescribeRequest(), {});
      EXPECT_EQ(state.jobs(0).state(), v1::JOB_STATE_QUEUED);
      EXPECT_EQ(state.jobs(0).checkpoint_step(), 2);
      release.set_value();
      cluster.RestartCoordinator();
    } else {
      ASSERT_OK(worker.AwaitMayLeave());
      worker.WaitFor("abort demo/1");
      release.set_value();
    }
    EXPECT_EQ(RecordedLoss(job, 2), std::nullopt);
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(worker.last_load().worker().step(), stops ? 2 : 0);
    EXPECT_EQ(RecordedLoss(job, 4), FakeLoss(4, 2));
    EXPECT_EQ(RecordedLoss(job, 5), FakeLoss(5, 2));
    ExpectTrained(job, 5);
  }
}

TEST_F(JobValidationTest, RoutersThatReadOtherTextsFailTheJob) {
  AddRouter("a", 1);
  v1::TextLoaded other = Text(1);
  other.set_digest(std::string(64, 'b'));
  cluster_.AddRouter("b").SetText(other);
  cluster_.AddWorker("w");
  TrainingJob job = cluster_.MakeJob();
  job.min_routers = 2;
  ASSERT_OK(cluster_.Submit(job));
  const v1::JobProgress last = cluster_.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_FALSE(last.retryable());
  EXPECT_EQ(last.status().code(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(last.status().message(),
              AllOf(HasSubstr("router '"), HasSubstr("reads another text")));
}

// With the routers that are there then, none of which has seen the first text.
TEST(JobTextTest, ARestartedCoordinatorExpectsTheSameText) {
  FakeCluster cluster({}, /*keep=*/true);
  FakeMember& router = cluster.AddRouter("r");
  router.SetText(Text(1));
  Hold hold;
  cluster.AddWorker("w", hold.At([](const v1::Command& command) {
    return command.has_prepare_step();
  }));
  ASSERT_OK(cluster.Submit(cluster.MakeJob()));
  hold.WaitUntilHeld();
  v1::TextLoaded changed = Text(1);
  changed.set_digest(std::string(64, 'b'));
  cluster.RestartCoordinator([&] { router.SetText(changed); });
  hold.Release();
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(last.status().message(), HasSubstr("reads another text"));
  // A job that is submitted again begins with what there is.
  ASSERT_OK(cluster.Submit(cluster.MakeJob(), /*resume=*/true));
  const v1::JobProgress resumed = cluster.Watch("demo").back();
  EXPECT_EQ(resumed.state(), v1::JOB_STATE_SUCCEEDED)
      << resumed.status().message();
  EXPECT_EQ(resumed.text_digest(), changed.digest());
  EXPECT_EQ(resumed.held_out_microbatches(), 1);
}

// Of this attempt, whose steps it could help, and of the next one.
TEST_F(JobValidationTest, ALateRouterThatReadsAnotherTextDropsTheJob) {
  FakeMember* late = nullptr;
  std::promise<void> stuck, release;
  auto released = release.get_future().share();
  std::atomic<bool> first{true};
  AddRouter("a", 0,
            [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
              if (c.assign_microbatch().step() == 2 && first.exchange(false)) {
                stuck.set_value();
                released.wait();
              }
              // So it is the last one to load the next attempt.
              if (c.load_session().session() == "demo/2")
                late->WaitFor("abort demo/2");
              return std::nullopt;
            });
  cluster_.AddWorker("w");
  TrainingJob job = cluster_.MakeJob();
  job.checkpoint.every_steps = 2;
  ASSERT_OK(cluster_.Submit(job));
  stuck.get_future().wait();
  late = &cluster_.AddRouter(
      "b", [](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.has_load_session()) return std::nullopt;
        v1::CommandReply reply;
        *reply.mutable_session_loaded()->mutable_text() = Text(0);
        reply.mutable_session_loaded()->mutable_text()->set_pairs(99);
        return reply;
      });
  // Otherwise it would answer that it has the job when it is asked again.
  late->WaitFor("abort demo/1");
  cluster_.AddWorker("joins");  // so the next attempt begins at the checkpoint
  while (cluster_.Describe().members_size() < 4) std::this_thread::yield();
  release.set_value();
  const v1::JobProgress last = cluster_.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  ExpectTrained(job, 3);
}

}  // namespace
}  // namespace gshard
