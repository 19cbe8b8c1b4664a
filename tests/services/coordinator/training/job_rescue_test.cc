// With buddies, the loss of a worker costs at most the step in progress.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/rpc/wire/status.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kSteps = 5;

// Four experts on four workers, and no checkpoint except the last.
TrainingJob RescuedJob(const FakeCluster& cluster, bool buddies = true) {
  TrainingJob job = cluster.MakeJob();
  job.steps = kSteps;
  job.model.experts = 4;
  job.checkpoint.every_steps = 0;
  job.min_workers = 4;
  job.recovery.replacement_wait_ms = 0;
  job.recovery.buddies = buddies;
  return job;
}

// The checksums of the last checkpoint's tensors.
std::map<std::string, std::string> Sums(const TrainingJob& job) {
  const auto reader =
      CheckpointReader::Open(CheckpointPath(job.checkpoint.directory, kSteps));
  EXPECT_OK(reader);
  std::map<std::string, std::string> sums;
  if (!reader.ok()) return sums;
  for (const TensorEntry& entry : (*reader)->manifest().tensors) {
    sums[entry.name] = entry.sha256;
  }
  return sums;
}

// The checksums of an undisturbed run.
const std::map<std::string, std::string>& CalmSums() {
  static const auto& sums = *[] {
    FakeCluster cluster;
    const TrainingJob job = RescuedJob(cluster, /*buddies=*/false);
    cluster.AddRouter("r");
    for (int w = 0; w < 4; ++w) cluster.AddWorker(absl::StrCat("w", w));
    EXPECT_OK(cluster.Submit(job));
    EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
    return new std::map<std::string, std::string>(Sums(job));
  }();
  return sums;
}

// Workers w0 to w3, some with an intercept.
struct Workers {
  Workers(FakeCluster& cluster, std::map<int, FakeMember::Intercept> held) {
    for (int w = 0; w < 4; ++w) {
      all.push_back(&cluster.AddWorker(absl::StrCat("w", w), held[w]));
    }
  }
  std::vector<FakeMember*> all;
};

struct RescueCase {
  std::string name;
  Moment at;      // of the worker, or of the router
  int64_t start;  // step after which the next attempt begins
  bool of_router = false;
};

TEST(JobRescueTest, TheLossOfAWorkerCostsAtMostAStep) {
  for (const RescueCase& c :
       std::vector<RescueCase>{{"before a microbatch", IsAssign(3), 2, true},
                               {"while preparing", IsPrepare(3), 2},
                               {"while committing", IsCommit(3), 3},
                               {"at the first step", IsPrepare(1), 0}}) {
    for (const int w : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(c.name, ", worker ", w));
      FakeCluster cluster;
      const TrainingJob job = RescuedJob(cluster);
      Hold hold;
      cluster.AddRouter("r", c.of_router ? hold.At(c.at) : nullptr);
      std::map<int, FakeMember::Intercept> held;
      if (!c.of_router) held[w] = hold.At(c.at);
      Workers workers(cluster, held);
      ASSERT_OK(cluster.Submit(job));
      hold.Lose(cluster, *workers.all[w]);
      const v1::JobProgress last = cluster.Watch("demo").back();
      ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED)
          << last.status().message();
      EXPECT_EQ(last.attempt(), 2);
      EXPECT_EQ(Sums(job), CalmSums());
      const FakeMember& stays = *workers.all[0];
      EXPECT_EQ(stays.last_load().worker().step(), c.start);
      // The remaining workers have each other as buddies.
      EXPECT_EQ(stays.last_load().worker().replicated_experts_size(), 1);
      std::map<std::string, int> times;
      int again = 0;
      for (const std::string& command : stays.commands()) {
        if (++times[command] > 1 && command.substr(0, 7) == "prepare") ++again;
      }
      EXPECT_LE(again, 1);
    }
  }
}

TEST(JobRescueTest, EachWorkerReplicatesTheOneBefore) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  Workers workers(cluster, {});
  ASSERT_OK(cluster.Submit(RescuedJob(cluster)));
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  for (int w = 0; w < 4; ++w) {
    const v1::WorkerSession load = workers.all[w]->last_load().worker();
    EXPECT_THAT(load.experts(), ElementsAre(w));
    EXPECT_THAT(load.replicated_experts(), ElementsAre((w + 3) % 4));
    EXPECT_EQ(load.buddy_address(), absl::StrCat("unix:/tmp/w", (w + 1) % 4));
  }
  // There is no buddy for a lone worker, or without the option.
  for (const bool buddies : {false, true}) {
    FakeCluster other;
    other.AddRouter("r");
    FakeMember& alone = other.AddWorker("w");
    TrainingJob job = RescuedJob(other, buddies);
    job.min_workers = 1;
    if (!buddies) other.AddWorker("v");
    ASSERT_OK(other.Submit(job));
    EXPECT_EQ(other.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
    EXPECT_THAT(alone.last_load().worker().replicated_experts(), IsEmpty());
    EXPECT_EQ(alone.last_load().worker().buddy_address(), "");
  }
}

// A worker is lost when the last step is being committed or written: no step is
// run again.
TEST(JobRescueTest, ALossAtTheVeryEndTakesNoFurtherAttempt) {
  for (const auto& [name, at] :
       {std::pair("commit", IsCommit(5)), std::pair("write", IsWrite(5))}) {
    SCOPED_TRACE(name);
    FakeCluster cluster;
    const TrainingJob job = RescuedJob(cluster);
    cluster.AddRouter("r");
    Hold hold;
    Workers workers(cluster, {{2, hold.At(at)}});
    ASSERT_OK(cluster.Submit(job));
    hold.Lose(cluster, *workers.all[2]);
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(last.attempt(), 1);
    EXPECT_EQ(last.step(), kSteps);
    EXPECT_EQ(Sums(job), CalmSums());
  }
}

TEST(JobRescueTest, WithoutBuddiesAllIsMadeAgain) {
  FakeCluster cluster;
  const TrainingJob job = RescuedJob(cluster, /*buddies=*/false);
  cluster.AddRouter("r");
  Hold hold;
  Workers workers(cluster, {{1, hold.At(IsPrepare(3))}});
  ASSERT_OK(cluster.Submit(job));
  hold.Lose(cluster, *workers.all[1]);
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(workers.all[0]->last_load().worker().step(), 0);
  EXPECT_EQ(Sums(job), CalmSums());
}

TEST(JobRescueTest, AWorkerAndItsBuddyAreLostTogether) {
  for (const bool during_rescue : {false, true}) {
    SCOPED_TRACE(during_rescue);
    FakeCluster cluster;
    const TrainingJob job = RescuedJob(cluster);
    cluster.AddRouter("r");
    Hold first, second;
    Workers workers(
        cluster, {{1, first.At(IsPrepare(3))},
                  {2, second.At(during_rescue ? IsWrite(2) : IsPrepare(3))}});
    ASSERT_OK(cluster.Submit(job));
    if (!during_rescue) second.WaitUntilHeld();
    first.Lose(cluster, *workers.all[1]);
    second.Lose(cluster, *workers.all[2]);
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    // Training starts over, since there is no checkpoint.
    EXPECT_EQ(workers.all[0]->last_load().worker().step(), 0);
    EXPECT_THAT(workers.all[0]->last_load().worker().experts(),
                ElementsAre(0, 1));
    EXPECT_EQ(Sums(job), CalmSums());
  }
}

TEST(JobRescueTest, TwoThatAreNoBuddiesAreLost) {
  for (const bool during_rescue : {false, true}) {
    SCOPED_TRACE(during_rescue);
    FakeCluster cluster;
    const TrainingJob job = RescuedJob(cluster);
    cluster.AddRouter("r");
    Hold first, second;
    Workers workers(
        cluster, {{1, first.At(IsPrepare(3))},
                  {3, second.At(during_rescue ? IsWrite(2) : IsPrepare(3))}});
    ASSERT_OK(cluster.Submit(job));
    if (!during_rescue) second.WaitUntilHeld();
    first.Lose(cluster, *workers.all[1]);
    second.Lose(cluster, *workers.all[3]);
    const v1::JobProgress last = cluster.Watch("demo").back();
    ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    EXPECT_EQ(workers.all[0]->last_load().worker().step(), 2);
    EXPECT_EQ(Sums(job), CalmSums());
  }
}

// Its stream has ended, and the coordinator is about to take it off the list of
// members, but a command comes first.
TEST(JobRescueTest, AWorkerThatCannotBeReachedIsLost) {
  FakeCluster cluster;
  const TrainingJob job = RescuedJob(cluster);
  cluster.AddRouter("r");
  Hold first;
  const auto unavailable =
      [](const v1::Command& c) -> std::optional<v1::CommandReply> {
    if (!IsWrite(2)(c)) return std::nullopt;
    v1::CommandReply reply;
    *reply.mutable_status() =
        ToProtoStatus(absl::UnavailableError("the stream has ended"));
    return reply;
  };
  Workers workers(cluster, {{1, first.At(IsPrepare(3))}, {3, unavailable}});
  ASSERT_OK(cluster.Submit(job));
  first.Lose(cluster, *workers.all[1]);
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(workers.all[0]->last_load().worker().step(), 2);
  EXPECT_EQ(Sums(job), CalmSums());
}

// A checkpoint that is being written when a worker is lost is abandoned for the
// one that the rescue needs.
TEST(JobRescueTest, AWorkerIsLostWhileACheckpointIsWritten) {
  FakeCluster cluster;
  TrainingJob job = RescuedJob(cluster);
  job.checkpoint.every_steps = 2;
  cluster.AddRouter("r");
  Hold write, prepare;
  const auto hold_write = write.At(IsWrite(2));
  const auto hold_prepare = prepare.At(IsPrepare(4));
  Workers workers(
      cluster,
      {{2, [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
          return c.has_write_checkpoint() ? hold_write(c) : hold_prepare(c);
        }}});
  ASSERT_OK(cluster.Submit(job));
  write.WaitUntilHeld();
  prepare.WaitUntilHeld();
  std::thread leave([&] { workers.all[2]->Leave(); });
  workers.all[0]->WaitFor("load demo/2");
  write.Release();
  prepare.Release();
  leave.join();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(workers.all[0]->last_load().worker().step(), 3);
  EXPECT_THAT(workers.all[0]->commands(), Contains("write 3"));
  EXPECT_EQ(Sums(job), CalmSums());
}

// The checkpoint to roll back to was given up for that of the rescue, so that
// the one before it is kept, and the steps after it are made again.
TEST(JobRescueTest, ARollbackAfterARescueDoesNotBeginAnew) {
  FakeCluster cluster;
  TrainingJob job = RescuedJob(cluster);
  job.steps = 7;
  job.checkpoint.every_steps = 2;
  job.checkpoint.keep = 1;
  job.checkpoint.keep_best = 0;
  job.on_nonfinite = OnNonfinite::kRollback;
  cluster.AddRouter("r");
  FakeMember* stays = nullptr;
  const auto not_finite =
      [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
    if (!IsPrepare(6)(c)) return std::nullopt;
    const v1::WorkerSession load = stays->last_load().worker();
    v1::CommandReply reply;
    for (const char* layer : {"encoder.0.moe.w", "decoder.0.moe.w"}) {
      for (const char* weight : {"i/", "o/"}) {
        for (const int32_t e : load.experts()) {
          auto* const norm = reply.mutable_step_prepared()->add_norms();
          norm->set_tensor(absl::StrCat(layer, weight, e));
          norm->set_squared_norm(std::numeric_limits<double>::infinity());
        }
      }
    }
    return reply;
  };
  Hold write, prepare;
  const auto hold_write = write.At(IsWrite(4));
  const auto hold_prepare = prepare.At(IsPrepare(6));
  Workers workers(
      cluster,
      {{0, not_finite},
       {2, [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
          return c.has_write_checkpoint() ? hold_write(c) : hold_prepare(c);
        }}});
  stays = workers.all[0];
  ASSERT_OK(cluster.Submit(job));
  write.WaitUntilHeld();
  prepare.WaitUntilHeld();
  std::thread leave([&] { workers.all[2]->Leave(); });
  stays->WaitFor("load demo/2");
  write.Release();
  prepare.Release();
  leave.join();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 4);
  const std::vector<std::string> commands = stays->commands();
  EXPECT_THAT(commands, Contains("write 5"));
  EXPECT_EQ(std::count(commands.begin(), commands.end(), "prepare 2"), 1);
  EXPECT_EQ(std::count(commands.begin(), commands.end(), "prepare 3"), 2);
  ExpectTrained(job, 7, {5, 6});
}

// A job whose router has held-out text.
struct ValidatedJob {
  explicit ValidatedJob(std::map<int, FakeMember::Intercept> held)
      : job(RescuedJob(cluster)) {
    v1::TextLoaded text;
    text.set_digest("text");
    text.set_validation_microbatches(2);
    cluster.AddRouter("r").SetText(text);
    workers = std::make_unique<Workers>(cluster, std::move(held));
  }

  FakeCluster cluster;
  TrainingJob job;
  std::unique_ptr<Workers> workers;
};

// The checkpoint that the rescue makes instead has the loss that was measured.
TEST(JobRescueTest, ARescueKeepsTheLossOnTheHeldOutText) {
  Hold hold;
  ValidatedJob validated({{2, hold.At(IsWrite(2))}});
  auto& [cluster, job, workers] = validated;
  job.checkpoint.every_steps = 2;
  job.checkpoint.asynchronous = false;
  job.checkpoint.keep = 10;
  ASSERT_OK(cluster.Submit(job));
  hold.Lose(cluster, *workers->all[2]);
  std::map<int64_t, double> losses;
  for (const v1::JobProgress& line : cluster.Watch("demo")) {
    losses[line.validation_step()] = line.validation_loss();
  }
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(workers->all[0]->last_load().worker().step(), 2);
  for (const int64_t step : {2, 4, 5}) {
    ASSERT_OK_AND_ASSIGN(
        const auto reader,
        CheckpointReader::Open(CheckpointPath(job.checkpoint.directory, step)));
    ASSERT_EQ(losses.count(step), 1u) << step;
    EXPECT_EQ(reader->manifest().validation_loss, losses[step]) << step;
  }
  EXPECT_EQ(Sums(job), CalmSums());
}

// A worker answers PrepareStep once its buddy has the gradients, which has a
// minute at least, beside the ten of any command.
TEST(JobRescueTest, AStepHasTimeForThePushesToBuddies) {
  std::atomic<int64_t> seconds{0};
  FakeCluster cluster({.lease = absl::Hours(1000), .clock = [&] {
                         return MonotonicTime() + absl::Seconds(seconds.load());
                       }});
  const TrainingJob job = RescuedJob(cluster);
  std::promise<void> pushes, pushed;
  auto has_pushed = pushed.get_future().share();
  cluster.AddRouter("r");
  cluster.AddWorker(
      "w0", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!IsPrepare(2)(command)) return std::nullopt;
        pushes.set_value();
        has_pushed.wait();
        return std::nullopt;
      });
  for (const char* name : {"w1", "w2", "w3"}) cluster.AddWorker(name);
  ASSERT_OK(cluster.Submit(job));
  pushes.get_future().wait();
  seconds = 630;
  cluster.coordinator().members().Expire();
  EXPECT_EQ(cluster.Describe().members_size(), 5);
  pushed.set_value();
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 1);
}

}  // namespace
}  // namespace gshard
