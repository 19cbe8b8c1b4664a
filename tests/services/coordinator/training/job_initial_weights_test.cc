// A job that begins with the weights of another's checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/coordinator/preparation/job_files.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/hold.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A job that begins with a checkpoint of another, or the newest in its folder.
TrainingJob Tuning(const FakeCluster& cluster, const std::string& from) {
  TrainingJob job = cluster.MakeJob("tuning");
  job.initialize_from = from;
  job.data.source_tokenizer_path = "";
  job.schedule.multiplier = 0.2;
  job.checkpoint.every_steps = 2;
  job.min_workers = 2;
  job.recovery.replacement_wait_ms = 0;
  return job;
}

// Trains the job "general"; returns its folder.
std::string TrainGeneral(FakeCluster& cluster) {
  const TrainingJob job = cluster.MakeJob("general");
  EXPECT_OK(cluster.Submit(job));
  EXPECT_EQ(cluster.Watch("general").back().state(), v1::JOB_STATE_SUCCEEDED);
  return job.checkpoint.directory;
}

void ExpectTuned(FakeCluster& cluster, TrainingJob job, int64_t attempts,
                 const std::set<int64_t>& skipped = {}) {
  const v1::JobProgress last = cluster.Watch("tuning").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(last.attempt(), attempts);
  ASSERT_OK_AND_ASSIGN(job.initialize_from, CheckpointAt(job.initialize_from));
  ExpectTrained(job, 2, skipped);
  ExpectTrained(job, 3, skipped);
}

TEST(JobInitialWeightsTest, AJobBeginsWithTheWeightsOfAnother) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  const std::string general = TrainGeneral(cluster);
  const TrainingJob job = Tuning(cluster, general);
  ASSERT_OK(cluster.Submit(job));
  ASSERT_NO_FATAL_FAILURE(ExpectTuned(cluster, job, 1));
  EXPECT_EQ(worker.last_load().worker().source().checkpoint_directory(),
            CheckpointPath(general, 3));
  EXPECT_TRUE(worker.last_load().worker().source().weights_only());
  EXPECT_EQ(worker.last_load().worker().step(), 0);
  EXPECT_THAT(*ListCheckpoints(general),
              ElementsAre(CheckpointPath(general, 3)));
}

// Attempts before the job's first checkpoint begin with the same weights.
TEST(JobInitialWeightsTest, AWorkerIsLostBeforeTheFirstCheckpoint) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  FakeMember& stays = cluster.AddWorker("w0");
  Hold hold;
  FakeMember& lost = cluster.AddWorker("w1", hold.At([](const auto& c) {
    return c.has_prepare_step() && c.prepare_step().session() == "tuning/1" &&
           c.prepare_step().step() == 2;
  }));
  const TrainingJob job = Tuning(cluster, TrainGeneral(cluster));
  ASSERT_OK(cluster.Submit(job));
  hold.Lose(cluster, lost);
  ASSERT_NO_FATAL_FAILURE(ExpectTuned(cluster, job, 2));
  EXPECT_TRUE(stays.last_load().worker().source().weights_only());
}

TEST(JobInitialWeightsTest, ARollbackToTheStartIsToTheseWeights) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  std::atomic<bool> bad{false};
  FakeMember& worker = cluster.AddWorker(
      "w0", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.has_prepare_step() || !bad.exchange(false)) return std::nullopt;
        v1::CommandReply reply;
        for (const char* weight : {"encoder.0.moe.wi/", "encoder.0.moe.wo/",
                                   "decoder.0.moe.wi/", "decoder.0.moe.wo/"}) {
          for (int e = 0; e < 3; ++e) {
            auto* const norm = reply.mutable_step_prepared()->add_norms();
            norm->set_tensor(absl::StrCat(weight, e));
            norm->set_squared_norm(std::numeric_limits<double>::infinity());
          }
        }
        return reply;
      });
  TrainingJob job = Tuning(cluster, TrainGeneral(cluster));
  job.min_workers = 1;
  job.on_nonfinite = OnNonfinite::kRollback;
  bad = true;
  ASSERT_OK(cluster.Submit(job));
  ASSERT_NO_FATAL_FAILURE(ExpectTuned(cluster, job, 2, /*skipped=*/{1}));
  const v1::WorkerSession load = worker.last_load().worker();
  EXPECT_TRUE(load.source().weights_only());
  EXPECT_EQ(load.step(), 1);
  EXPECT_EQ(load.skipped_steps(), 1);
}

TEST(JobInitialWeightsTest, AResumedJobKeepsTheCheckpointItBeganWith) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  const std::string general = TrainGeneral(cluster);
  TrainingJob job = Tuning(cluster, general);
  ASSERT_OK(cluster.Submit(job));
  ASSERT_NO_FATAL_FAILURE(ExpectTuned(cluster, job, 1));
  std::filesystem::copy(CheckpointPath(general, 3), CheckpointPath(general, 9),
                        std::filesystem::copy_options::recursive);
  ASSERT_OK(FindJobFiles(&job));
  EXPECT_EQ(job.initialize_from, CheckpointPath(general, 3));
}

TEST(JobInitialWeightsTest, AJobWithACheckpointContinuesFromThat) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  FakeMember& worker = cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  const std::string general = TrainGeneral(cluster);
  TrainingJob job = Tuning(cluster, general);
  ASSERT_OK(cluster.Submit(job));
  ASSERT_NO_FATAL_FAILURE(ExpectTuned(cluster, job, 1));
  std::filesystem::rename(general, general + ".moved");
  job.steps = 4;
  ASSERT_OK(cluster.Submit(job, /*resume=*/true));
  const v1::JobProgress last = cluster.Watch("tuning").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(worker.last_load().worker().source().checkpoint_directory(),
            CheckpointPath(job.checkpoint.directory, 3));
  EXPECT_FALSE(worker.last_load().worker().source().weights_only());
  job.initialize_from = CheckpointPath(general + ".moved", 3);
  ExpectTrained(job, 4);
}

// The checkpoint is chosen at submission, and its job keeps it until then.
TEST(JobInitialWeightsTest, ACheckpointThatAJobWaitsForIsKept) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  std::promise<void> submitted;
  const std::shared_future<void> is_submitted = submitted.get_future().share();
  FakeMember& worker = cluster.AddWorker(
      "w", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (c.has_prepare_step() && c.prepare_step().step() == 3) {
          is_submitted.wait();
        }
        return std::nullopt;
      });
  TrainingJob general = cluster.MakeJob("general");
  general.steps = 4;
  general.checkpoint.every_steps = 2;
  general.checkpoint.keep = 1;
  ASSERT_OK(cluster.Submit(general));
  while (cluster.Describe().jobs(0).checkpoint_step() < 2) {
    std::this_thread::yield();
  }
  TrainingJob job = Tuning(cluster, general.checkpoint.directory);
  job.min_workers = 1;
  ASSERT_OK(cluster.Submit(job));
  submitted.set_value();
  job.initialize_from = CheckpointPath(general.checkpoint.directory, 2);
  ASSERT_NO_FATAL_FAILURE(ExpectTuned(cluster, job, 1));
  EXPECT_EQ(worker.last_load().worker().source().checkpoint_directory(),
            job.initialize_from);
  EXPECT_EQ(cluster.Watch("general").back().checkpoint_step(), 4);
}

TEST(JobInitialWeightsTest, DamageFailsTheJob) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  const std::string path = CheckpointPath(TrainGeneral(cluster), 3);
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  const TensorEntry* const entry = reader->Find("encoder.0.moe.wi/1");
  ASSERT_NE(entry, nullptr);
  const std::string file = path + "/" + entry->file;
  ASSERT_OK_AND_ASSIGN(const auto shard, SafetensorsReader::Open(file));
  const size_t at = shard->tensors().at(entry->name).offset;
  Poke(file, at, static_cast<char>(Slurp(file)[at] ^ 1));
  ASSERT_OK(cluster.Submit(Tuning(cluster, path)));
  const v1::JobProgress last = cluster.Watch("tuning").back();
  EXPECT_EQ(last.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(last.status().message(),
              AllOf(HasSubstr("initialize_from: "), HasSubstr(entry->name)));
  EXPECT_TRUE(IsDirectory(path));
}

TEST(JobInitialWeightsTest, WhatDoesNotFitIsRefusedAtSubmission) {
  FakeCluster cluster;
  cluster.AddRouter("r");
  cluster.AddWorker("w0");
  const std::string general = TrainGeneral(cluster);
  const auto expect = [&](const TrainingJob& job, absl::StatusCode code,
                          const std::string& message) {
    EXPECT_THAT(cluster.Submit(job), StatusIs(code, HasSubstr(message)));
  };
  TrainingJob job = Tuning(cluster, general);
  job.model.expert_width = 8;
  expect(job, absl::StatusCode::kFailedPrecondition,
         absl::StrCat("initialize_from: model: expected 'expert_width: 4' as "
                      "in the checkpoint ",
                      CheckpointPath(general, 3), ", got 'expert_width: 8'"));
  job = Tuning(cluster, general + "/tokenizer");
  expect(job, absl::StatusCode::kInvalidArgument,
         "initialize_from: expected a readable checkpoint: no checkpoint in");
  job = Tuning(cluster, general);
  job.checkpoint.directory = CheckpointPath(general, 3) + "/more";
  expect(job, absl::StatusCode::kInvalidArgument,
         "checkpoint.directory: expected a folder outside the checkpoint");
}

}  // namespace
}  // namespace gshard
