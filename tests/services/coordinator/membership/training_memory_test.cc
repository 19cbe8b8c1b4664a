// The memory that a training step may take, and jobs that do not fit.

#include "services/coordinator/membership/training_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/train/job_options.h"
#include "services/train/plan.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// A job with M 8, H 4, E 3 and an MoE layer in either stack.
TrainingJob Job() {
  const ScratchDirectory scratch;
  TrainingJob job = MakeFakeJob("demo", scratch);
  job.optimizer = AdamConfig();
  job.microbatches_per_step = 12;
  job.tokens_per_microbatch = 30;
  return job;
}

TEST(TrainingMemoryTest, CountsWhatAWorkerHolds) {
  const double expert = 4.0 * 2 * (8 * 4 + 4 * 8);
  const TrainingMemory memory =
      MemoryOfWorker(Job(), /*experts=*/2, /*replicas=*/1);
  EXPECT_EQ(memory.parameters, 3 * 3 * expert);  // with Adam's two moments
  EXPECT_EQ(memory.sum, 3 * expert);
  EXPECT_EQ(memory.gradient, 2 * expert);
  // Two rows per token, two thirds of them on this worker, in two layers.
  EXPECT_DOUBLE_EQ(memory.rows, 2.0 * 30 * 2 / 3 * 4 * (8 + 4) * 2);
  EXPECT_EQ(memory.Total(6), memory.parameters + memory.sum +
                                 6 * (memory.gradient + memory.rows));
  // Of its own experts, with their optimizer state.
  EXPECT_EQ(memory.copy, 2 * 3 * expert);
  EXPECT_EQ(memory.Total(6, /*asynchronous_checkpoints=*/true),
            memory.Total(6) + memory.copy);
}

TEST(TrainingMemoryTest, CountsWhatTheStoreOfTheCoordinatorHolds) {
  const TrainingJob job = Job();
  ParameterStore store(ParametersOf(job.model, /*per_expert=*/false), {},
                       MakeOptimizer(job.optimizer));
  ASSERT_OK(store.Load(nullptr, 1));
  const TrainingMemory memory = MemoryOfCoordinator(job);
  EXPECT_EQ(memory.parameters, static_cast<double>(store.bytes()));
  EXPECT_EQ(memory.copy, memory.parameters);
  EXPECT_EQ(memory.sum, memory.parameters / 3);
  EXPECT_EQ(memory.gradient, memory.sum);
  EXPECT_EQ(memory.rows, 0);
}

// `gshard plan` says what a job takes at least.
TEST(TrainingMemoryTest, AgreesWithThePlan) {
  TrainingJob job = Job();
  for (const ComputeType type :
       {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    job.model.compute_type = type;
    ASSERT_OK_AND_ASSIGN(
        const Plan plan,
        MakePlan(job.model, {.workers = 2,
                             .tokens_per_microbatch = job.tokens_per_microbatch,
                             .optimizer = job.optimizer}));
    EXPECT_DOUBLE_EQ(MemoryOfCoordinator(job).Total(1),
                     static_cast<double>(plan.coordinator_training.Total()));
    EXPECT_DOUBLE_EQ(
        MemoryOfWorker(job, plan.most_experts_per_worker, 0).Total(1),
        static_cast<double>(plan.worker_training.Total()));
  }
}

TEST(TrainingMemoryTest, TheWindowIsWhatThereIsMemoryFor) {
  TrainingJob job = Job();
  const TrainingMemory memory = MemoryOfWorker(job, 3, 0);
  const auto window = [&](double capacity) {
    return LargestWindow(job, memory, static_cast<int64_t>(capacity), "'w'");
  };
  for (int64_t most = 1; most <= 8; ++most) {
    ASSERT_OK_AND_ASSIGN(const int32_t exactly, window(memory.Total(most)));
    EXPECT_EQ(exactly, most);
  }
  ASSERT_OK_AND_ASSIGN(const int32_t unknown, window(0));
  EXPECT_EQ(unknown, 12);
  job.microbatches_per_step = 5;
  ASSERT_OK_AND_ASSIGN(const int32_t all, window(1e9));
  EXPECT_EQ(all, 5);
  EXPECT_THAT(window(memory.Total(1) - 1),
              StatusIs(kExhausted,
                       AllOf(HasSubstr("training takes"), HasSubstr("of 'w'"),
                             HasSubstr("which offers"))));
}

// Whether steps go on while a checkpoint is written, and the window.
TEST(TrainingMemoryTest, ACopyForCheckpointsLeavesHalfOfTheWindow) {
  TrainingJob job = Job();
  Member worker;
  worker.info = {
      .id = "w", .role = MemberRole::kExpertWorker, .address = "unix:/w"};
  const auto plan = [&](double capacity, double dense) {
    worker.info.capacity_bytes = static_cast<int64_t>(capacity);
    const auto made = PlanTraining("demo/1", job, TrainingStart(), {worker},
                                   static_cast<int64_t>(dense), 1);
    EXPECT_OK(made);
    EXPECT_EQ(made->worker_loads[0].worker().microbatch_window(),
              made->microbatch_window);
    return std::pair(made->asynchronous_checkpoints, made->microbatch_window);
  };
  const auto all = [](int32_t window) { return std::pair(true, window); };
  const auto wait = [](int32_t window) { return std::pair(false, window); };
  const TrainingMemory dense = MemoryOfCoordinator(job);
  const TrainingMemory large = MemoryOfWorker(job, 3, 0);
  ASSERT_LT(large.copy, large.gradient + large.rows);
  EXPECT_EQ(plan(0, 0), all(12));
  EXPECT_EQ(plan(large.Total(1), 0), wait(1));
  EXPECT_EQ(plan(large.Total(1) + large.copy, 0), all(1));
  EXPECT_EQ(plan(large.Total(4), 0), all(3));
  // The coordinator makes a copy, too.
  EXPECT_EQ(plan(0, dense.Total(2)), wait(2));
  EXPECT_EQ(plan(0, dense.Total(2, true)), wait(5));
  EXPECT_EQ(plan(0, dense.Total(3, true)), all(3));
  // A copy that takes as much as 2.7 microbatches.
  job.tokens_per_microbatch = 1;
  const TrainingMemory small = MemoryOfWorker(job, 3, 0);
  EXPECT_EQ(plan(small.Total(4), 0), wait(4));
  EXPECT_EQ(plan(small.Total(6), 0), all(3));
  // The copy of what is on a GPU is on its host.
  worker.info.device = "cuda";
  EXPECT_EQ(plan(small.Total(1), 0), all(1));
  job.checkpoint.asynchronous = false;
  EXPECT_EQ(plan(0, 0), wait(12));
}

TEST(TrainingMemoryTest, StepsWaitForACheckpointIfThereIsNoMemoryForACopy) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.checkpoint.every_steps = 1;
  std::atomic<int64_t> written = 0;
  cluster.AddRouter("r");
  cluster.AddWorker(
      "w",
      [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        const auto committed = [&](int64_t step) {
          return IsDirectory(CheckpointPath(job.checkpoint.directory, step));
        };
        if (c.has_commit_step()) {
          const int64_t step = c.commit_step().step();
          EXPECT_TRUE(step == 1 || committed(step - 1)) << step;
        }
        if (c.has_write_checkpoint()) ++written;
        return std::nullopt;
      },
      static_cast<int64_t>(MemoryOfWorker(job, 3, 0).Total(1)));
  ASSERT_OK(cluster.Submit(job));
  ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(written, 3);
  ExpectTrained(job, 3);
}

TEST(TrainingMemoryTest, AJobGetsWhatServedModelsLeave) {
  FakeCluster cluster;
  const auto await_members = [&](int count) {
    while (cluster.Describe().members_size() != count) {
      std::this_thread::yield();
    }
  };
  const auto run = [&](const TrainingJob& job) {
    EXPECT_OK(cluster.Submit(job));
    const v1::JobProgress last = cluster.Watch(job.name).back();
    EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(last.attempt(), 1);
    return last.checkpoint_directory();
  };
  const TrainingJob first = cluster.MakeJob("first");
  cluster.AddRouter("r");
  FakeMember& old = cluster.AddWorker("old");
  const std::string trained = run(first);
  old.Leave();
  await_members(1);
  // Enough for the larger share of a job on two workers.
  FakeMember& small = cluster.AddWorker(
      "w0", nullptr,
      static_cast<int64_t>(MemoryOfWorker(first, 2, 0).Total(1)));
  await_members(2);
  ASSERT_OK(cluster.LoadModel("m", "1", trained, /*replicas=*/2));
  const TrainingJob second = cluster.MakeJob("second");
  EXPECT_THAT(cluster.Submit(second),
              StatusIs(kExhausted, AllOf(HasSubstr("expert worker 'w0' beside"),
                                         HasSubstr("of served models"))));
  FakeMember& large = cluster.AddWorker("w1");
  await_members(3);
  run(second);
  EXPECT_THAT(small.commands(), Not(Contains("load second/1")));
  EXPECT_THAT(large.last_load().worker().experts(), ElementsAre(0, 1, 2));
  ASSERT_OK(cluster.UnloadModel("m@1"));
  run(cluster.MakeJob("third"));
  EXPECT_THAT(small.commands(), Contains("load third/1"));
}

TEST(TrainingMemoryTest, AJobWaitsForWhatServedModelsFree) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  job.recovery.replacement_wait_ms = 0;
  const auto needed = static_cast<int64_t>(MemoryOfWorker(job, 3, 0).Total(1));
  cluster.AddRouter("r");
  cluster.AddWorker("w0", nullptr, needed);
  while (cluster.Describe().members_size() != 2) std::this_thread::yield();
  const TrainingJob first = cluster.MakeJob("first");
  ASSERT_OK(cluster.Submit(first));
  ASSERT_OK(cluster.LoadModel(
      "m", "1", cluster.Watch("first").back().checkpoint_directory()));
  Hold hold;
  FakeMember& lost = cluster.AddWorker("w1", hold.At(IsPrepare(2)));
  while (cluster.Describe().members_size() != 3) std::this_thread::yield();
  ASSERT_OK(cluster.Submit(job));
  hold.Lose(cluster, lost);
  const auto waits = [](const v1::JobProgress& progress) {
    return absl::StrContains(progress.status().message(), "of served models");
  };
  ASSERT_TRUE(waits(cluster.Watch("demo", waits).back()));
  ASSERT_OK(cluster.UnloadModel("m@1"));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  ExpectTrained(job, 3);
}

TEST(TrainingMemoryTest, AJobForWhichThereIsNotEnoughIsRefusedAtOnce) {
  FakeCluster cluster;
  TrainingJob job = cluster.MakeJob();
  const auto needed = static_cast<int64_t>(MemoryOfWorker(job, 3, 0).Total(1));
  cluster.AddWorker("small", nullptr, needed - 1);
  while (cluster.Describe().members_size() == 0) std::this_thread::yield();
  EXPECT_THAT(cluster.Submit(job),
              StatusIs(kExhausted, HasSubstr("of expert worker 'small'")));
  // Two such workers have room for the job.
  job.min_workers = 2;
  ASSERT_OK(cluster.Submit(job));
  cluster.AddRouter("r");
  cluster.AddWorker("other", nullptr, needed - 1);
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  ExpectTrained(job, 3);
}

TEST(TrainingMemoryTest, WithMemoryForOneMicrobatchTheyRunInTurn) {
  CoordinatorOptions options;
  options.retry_delay = absl::Milliseconds(1);
  FakeCluster cluster(std::move(options));
  TrainingJob job = cluster.MakeJob();
  job.steps = 1;
  FakeMember& router = cluster.AddRouter(
      "r", [](const v1::Command& c) -> std::optional<v1::CommandReply> {
        const v1::AssignMicrobatch& assign = c.assign_microbatch();
        if (assign.microbatch() != 0 || assign.attempt() == 2 ||
            !c.has_assign_microbatch()) {
          return std::nullopt;
        }
        return ReplyWith(absl::UnavailableError("a worker was slow"));
      });
  FakeMember& worker = cluster.AddWorker(
      "w", nullptr, static_cast<int64_t>(MemoryOfWorker(job, 3, 0).Total(1)));
  ASSERT_OK(cluster.Submit(job));
  ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(worker.last_load().worker().microbatch_window(), 1);
  std::vector<std::string> commands = router.commands();
  std::erase_if(commands, [](const std::string& command) {
    return command.rfind("assign", 0) != 0;
  });
  EXPECT_THAT(commands,
              ElementsAre("assign 1/0/0", "assign 1/0/1", "assign 1/0/2",
                          "assign 1/1/0", "assign 1/2/0", "assign 1/3/0"));
  ExpectTrained(job, 1);
}

}  // namespace
}  // namespace gshard
