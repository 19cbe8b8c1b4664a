// A job resumes from the last good checkpoint if a later one is damaged,
// whichever side finds the damage: the coordinator reads only what it needs,
// and members check what they load.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/coordinator/preparation/job_preparation.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/moment.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TrainingJob JobOf(const FakeCluster& cluster, int64_t steps) {
  TrainingJob job = cluster.MakeJob();
  job.steps = steps;
  job.checkpoint.every_steps = 2;
  job.checkpoint.asynchronous = false;
  job.checkpoint.keep = 10;
  job.min_workers = 2;
  job.recovery.replacement_wait_ms = 0;
  return job;
}

// Flips a bit of a tensor whose name begins with `prefix`; returns its name.
std::string Damage(const TrainingJob& job, int64_t step,
                   const std::string& prefix) {
  const std::string path = CheckpointPath(job.checkpoint.directory, step);
  const auto reader = CheckpointReader::Open(path);
  CHECK(reader.ok());
  const auto& tensors = (*reader)->manifest().tensors;
  const auto entry =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
        return absl::StartsWith(tensor.name, prefix);
      });
  CHECK(entry != tensors.end());
  const std::string file = path + "/" + entry->file;
  const auto shard = SafetensorsReader::Open(file);
  CHECK(shard.ok());
  const StoredTensor& stored = (*shard)->tensors().at(entry->name);
  const size_t at = stored.offset + stored.bytes - 1;
  Poke(file, at, static_cast<char>(Slurp(file)[at] ^ 1));
  return entry->name;
}

std::string Aside(const TrainingJob& job, int64_t step) {
  return CheckpointPath(job.checkpoint.directory, step) + ".damaged";
}

// Trains four steps, with checkpoints after two and four.
void TrainFour(FakeCluster& cluster) {
  ASSERT_OK(cluster.Submit(JobOf(cluster, 4)));
  ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(JobDamageTest, AJobGoesOnFromTheCheckpointBefore) {
  struct Case {
    std::string tensor, finder;
  };
  for (const auto& [tensor, finder] :
       std::vector<Case>{{"encoder.0.moe.wi/1", "expert worker 'w0'"},
                         {"optimizer/decoder.0.moe.wo/2", "expert worker 'w1'"},
                         {"decoder.0.moe.gate", "tensor"},
                         {"optimizer/encoder.0.moe.gate", "tensor"}}) {
    SCOPED_TRACE(tensor);
    FakeCluster cluster;
    cluster.AddRouter("r");
    FakeMember& worker = cluster.AddWorker("w0");
    cluster.AddWorker("w1");
    ASSERT_NO_FATAL_FAILURE(TrainFour(cluster));
    const TrainingJob job = JobOf(cluster, 5);
    const std::string name = Damage(job, 4, tensor);
    ASSERT_OK(cluster.Submit(job, /*resume=*/true));
    const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
    ASSERT_EQ(lines.back().state(), v1::JOB_STATE_SUCCEEDED)
        << lines.back().status().message();
    EXPECT_EQ(lines.back().attempt(), 3);
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
      const std::string& why = line.status().message();
      return line.state() == v1::JOB_STATE_RECOVERING &&
             absl::StartsWith(why, finder) &&
             absl::StrContains(why,
                               "'" + name + "' of " +
                                   CheckpointPath(job.checkpoint.directory, 4));
    }));
    EXPECT_EQ(worker.last_load().worker().step(), 2);
    EXPECT_TRUE(IsDirectory(Aside(job, 4)));
    ExpectTrained(job, 4);
    ExpectTrained(job, 5);
  }
}

// No member loads tokenizers, so the coordinator checks them first.
TEST(JobDamageTest, TokenizersAreLookedAtFirst) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  ASSERT_NO_FATAL_FAILURE(TrainFour(cluster));
  const TrainingJob job = JobOf(cluster, 5);
  Poke(CheckpointPath(job.checkpoint.directory, 4) + "/source.model", 9, '?');
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 2);
  EXPECT_TRUE(IsDirectory(Aside(job, 4)));
  ExpectTrained(job, 5);
}

TEST(JobDamageTest, WithoutAGoodCheckpointTheJobFails) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  ASSERT_NO_FATAL_FAILURE(TrainFour(cluster));
  const TrainingJob job = JobOf(cluster, 5);
  const std::string name = Damage(job, 4, "encoder.0.moe.wi/0");
  Damage(job, 2, "encoder.0.moe.wi/1");
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(last.status().message(),
              AllOf(HasSubstr("none of 2 checkpoints"), HasSubstr(name)));
  // The job does not start over, and both checkpoints remain for inspection.
  EXPECT_THAT(worker.commands(), Not(Contains("load demo/3")));
  EXPECT_FALSE(IsDirectory(Aside(job, 4)));
  EXPECT_FALSE(IsDirectory(Aside(job, 2)));
}

// The member that reports the damage may have bad memory or a bad disk.
TEST(JobDamageTest, NothingIsSetAsideOnTheWordOfAMember) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  std::atomic<bool> bad{false};
  cluster.AddWorker(
      "w1", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!bad || !c.has_load_session()) return std::nullopt;
        return ReplyWith(absl::DataLossError("tensor 'x' is damaged"));
      });
  ASSERT_NO_FATAL_FAILURE(TrainFour(cluster));
  bad = true;
  const TrainingJob job = JobOf(cluster, 5);
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(last.attempt(), 3);
  EXPECT_THAT(last.status().message(),
              HasSubstr("the coordinator finds the checkpoint whole: expert "
                        "worker 'w1': tensor 'x' is damaged"));
  EXPECT_FALSE(IsDirectory(Aside(job, 4)));
  EXPECT_EQ(CheckpointPath(job.checkpoint.directory, 4),
            *LatestCheckpoint(job.checkpoint.directory));
}

// The answer of a worker with these experts whose gradients are not finite.
v1::CommandReply NotFinite(std::vector<int> experts) {
  v1::CommandReply reply;
  for (const char* stack : {"encoder", "decoder"}) {
    for (const char* weight : {"wi", "wo"}) {
      for (const int e : experts) {
        auto* const norm = reply.mutable_step_prepared()->add_norms();
        norm->set_tensor(absl::StrCat(stack, ".0.moe.", weight, "/", e));
        norm->set_squared_norm(std::numeric_limits<double>::infinity());
      }
    }
  }
  return reply;
}

TEST(JobDamageTest, ARollbackToADamagedCheckpointGoesOnFromOneBefore) {
  FakeCluster cluster;
  TrainingJob job = JobOf(cluster, 5);
  job.on_nonfinite = OnNonfinite::kRollback;
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  std::atomic<bool> first{true};
  FakeMember& worker = cluster.AddWorker(
      "w1", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!IsPrepare(5)(c) || !first.exchange(false)) return std::nullopt;
        Damage(job, 4, "encoder.0.moe.wi/0");
        return NotFinite({2});
      });
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), 3);
  EXPECT_EQ(worker.last_load().worker().step(), 2);
  EXPECT_TRUE(IsDirectory(Aside(job, 4)));
  ExpectTrained(job, 5);
}

// A router and two workers; of the second, the result, the sixth step is not
// finite.
FakeMember& AddMembers(FakeCluster& cluster) {
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  return cluster.AddWorker(
      "w1", [](const v1::Command& c) -> std::optional<v1::CommandReply> {
        return IsPrepare(6)(c) ? std::optional(NotFinite({2})) : std::nullopt;
      });
}

// Trains five steps, with checkpoints after two, four and five, the rest of a
// job whose sixth step is not finite and rolls back to the fourth.
TrainingJob TrainFive(FakeCluster& cluster) {
  TrainingJob job = JobOf(cluster, 5);
  job.on_nonfinite = OnNonfinite::kRollback;
  EXPECT_OK(cluster.Submit(job));
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  job.steps = 7;
  return job;
}

TEST(JobDamageTest, ARollbackToALostCheckpointKeepsLaterOnes) {
  for (const bool removed : {false, true}) {
    SCOPED_TRACE(removed ? "removed" : "damaged");
    FakeCluster cluster;
    FakeMember& worker = AddMembers(cluster);
    const TrainingJob job = TrainFive(cluster);
    const std::string base = CheckpointPath(job.checkpoint.directory, 4);
    if (removed) {
      ASSERT_OK(RemoveTree(base));
    } else {
      Damage(job, 4, "encoder.0.moe.wi/0");
    }
    ASSERT_OK(cluster.Submit(job, /*resume=*/true));
    const std::vector<v1::JobProgress> lines = cluster.Watch("demo");
    ASSERT_EQ(lines.back().state(), v1::JOB_STATE_SUCCEEDED)
        << lines.back().status().message();
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
      return line.state() == v1::JOB_STATE_RECOVERING &&
             absl::StrContains(line.status().message(),
                               absl::StrCat("checkpoint ", base,
                                            ", to which the job goes back, is "
                                            "lost"));
    }));
    const std::vector<std::string> commands = worker.commands();
    EXPECT_EQ(std::count(commands.begin(), commands.end(), "prepare 2"), 1);
    EXPECT_EQ(std::count(commands.begin(), commands.end(), "prepare 3"), 2);
    EXPECT_EQ(IsDirectory(Aside(job, 4)), !removed);
    EXPECT_FALSE(IsDirectory(Aside(job, 5)));
    for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
    ExpectTrained(job, 7, /*skipped=*/{5, 6});
  }
}

TEST(JobDamageTest, WithoutAnEarlierCheckpointARollbackFailsAndKeepsAll) {
  FakeCluster cluster;
  FakeMember& worker = AddMembers(cluster);
  const TrainingJob job = TrainFive(cluster);
  ASSERT_OK(RemoveTree(CheckpointPath(job.checkpoint.directory, 2)));
  const std::string name = Damage(job, 4, "encoder.0.moe.wi/0");
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  const v1::JobProgress last = cluster.Watch("demo").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_FALSE(last.retryable());
  EXPECT_THAT(last.status().message(),
              AllOf(HasSubstr("step-00000004, to which the job would go back, "
                              "is lost, and there is no earlier one"),
                    HasSubstr(name), HasSubstr("another on_nonfinite")));
  EXPECT_FALSE(worker.last_load().worker().source().has_initial_seed());
  EXPECT_FALSE(IsDirectory(Aside(job, 4)));
  ExpectTrained(job, 5);
}

// The fifth step is made again, and a worker wants to leave after it.
TEST(JobDamageTest, ACheckpointThatIsThereAlreadyIsGoneOnFrom) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  FakeMember* stays = nullptr;
  stays = &cluster.AddWorker(
      "w0", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!IsPrepare(6)(c)) return std::nullopt;
        const v1::WorkerSession load = stays->last_load().worker();
        return NotFinite({load.experts().begin(), load.experts().end()});
      });
  std::promise<void> reached, asked;
  auto has_asked = asked.get_future().share();
  FakeMember& leaves = cluster.AddWorker(
      "w1", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (IsPrepare(5)(c) && c.prepare_step().session() == "demo/3") {
          reached.set_value();
          has_asked.wait();
        }
        return std::nullopt;
      });
  const TrainingJob job = TrainFive(cluster);
  ASSERT_OK(RemoveTree(CheckpointPath(job.checkpoint.directory, 4)));
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  reached.get_future().wait();
  ASSERT_OK(leaves.AwaitMayLeave());
  asked.set_value();
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  // From step 5, and, since the sixth is not finite, from 4, which is back.
  EXPECT_EQ(last.attempt(), 5);
  const std::vector<std::string> commands = stays->commands();
  EXPECT_EQ(std::count(commands.begin(), commands.end(), "prepare 5"), 2);
  ExpectTrained(job, 5);
  ExpectTrained(job, 7, /*skipped=*/{5, 6});
}

// Its coordinator ended before it had noted that the job was done.
TEST(JobDamageTest, ARestoredJobGoesOnThoughItsLastCheckpointIsDamaged) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  ASSERT_NO_FATAL_FAILURE(TrainFour(cluster));
  cluster.coordinator().Shutdown();  // its threads release the folder
  const TrainingJob job = JobOf(cluster, 4);
  Damage(job, 4, "encoder.0.moe.wi/1");
  const JobIntent intent{.resume = true, .restored = true};
  ASSERT_OK_AND_ASSIGN(const auto claim, ClaimFolder(job, intent));
  ASSERT_OK_AND_ASSIGN(const PreparedJob prepared,
                       PrepareJob(job, intent, *claim, {}));
  EXPECT_FALSE(prepared.start.trained);
  EXPECT_EQ(prepared.start.checkpoint->manifest().step, 2);
  EXPECT_TRUE(IsDirectory(Aside(job, 4)));
}

// One pass over a checkpoint of many gigabytes would take minutes.
TEST(JobDamageTest, TensorsAreLeftToThoseWhoLoadThem) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  ASSERT_NO_FATAL_FAILURE(TrainFour(cluster));
  cluster.coordinator().Shutdown();  // its threads release the folder
  const TrainingJob job = JobOf(cluster, 5);
  Damage(job, 4, "encoder.0.moe.wi/1");
  ASSERT_OK_AND_ASSIGN(const auto claim, ClaimFolder(job, {.resume = true}));
  ASSERT_OK_AND_ASSIGN(const PreparedJob prepared,
                       PrepareJob(job, {.resume = true}, *claim, {}));
  EXPECT_EQ(prepared.start.checkpoint->manifest().step, 4);
  ASSERT_OK_AND_ASSIGN(
      const ResumePoint quick,
      FindResumePoint(prepared.job, 4, *claim, Scrutiny::kQuick, {}));
  EXPECT_EQ(quick.checkpoint->manifest().step, 4);
  ASSERT_OK_AND_ASSIGN(
      const ResumePoint full,
      FindResumePoint(prepared.job, 4, *claim, Scrutiny::kFull, {}));
  EXPECT_EQ(full.checkpoint->manifest().step, 2);
}

}  // namespace
}  // namespace gshard
