// Workers write checkpoints while training steps continue.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_worker/worker_commands.h"
#include "expert_worker/worker_metrics.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/rpc/wire/status.h"
#include "tests/expert_worker/session_cluster.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/services/storage/scratch_directory.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

void RunStep(SessionCluster& cluster) {
  for (int32_t m = 0; m < kMicrobatches; ++m) {
    ASSERT_OK(cluster.Run(m, /*attempt=*/0));
  }
  ASSERT_OK(cluster.Commit());
}

TEST(CheckpointWritingTest, AShardIsOfItsStepWhateverFollows) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(AdafactorConfig()), OptimizerConfig(AdamConfig())}) {
    ScratchDirectory scratch;
    const TrainingJob job = SmallJob(optimizer);
    SessionCluster cluster(job, 2);
    RunStep(cluster);
    Gate gate(DiskChange::Kind::kCreate, "worker-0");
    Manifest manifest;
    manifest.step = 1;
    std::vector<std::unique_ptr<TrainingWorkerSession::Shard>> shards;
    for (int w = 0; w < 2; ++w) {
      ASSERT_OK_AND_ASSIGN(
          shards.emplace_back(),
          cluster.session(w).BeginCheckpoint(
              {scratch.path(), 1, absl::StrCat("worker-", w)}));
    }
    absl::StatusOr<std::vector<TensorEntry>> entries;
    std::thread writer([&] {
      entries = shards[0]->Write(nullptr, &gate);
      shards[0] = nullptr;
    });
    gate.WaitUntilReached();
    RunStep(cluster);
    gate.Open();
    RunStep(cluster);
    ASSERT_OK_AND_ASSIGN(manifest.tensors, shards[1]->Write());
    RunStep(cluster);
    writer.join();
    ASSERT_OK(entries);
    manifest.tensors.insert(manifest.tensors.end(), entries->begin(),
                            entries->end());
    cluster.ExpectEqual(*Reference(job, 4));

    ASSERT_OK_AND_ASSIGN(const std::string path,
                         CommitCheckpoint(scratch.path(), manifest, ""));
    WorkerSessionSpec spec =
        TrainingSpec(job, cluster.roles().segments, {0, 1, 2, 3, 4});
    spec.source.checkpoint_directory = path;
    spec.source.step = 1;
    ASSERT_OK_AND_ASSIGN(const auto session,
                         WorkerSession::Create(spec, kMemory));
    const auto reference = Reference(job, 1);
    for (const auto& [name, tensor] : session->training()->Parameters()) {
      EXPECT_TRUE(
          TensorEqual(tensor, reference->parameters().tensors().at(name)))
          << name;
    }
  }
}

TEST(CheckpointWritingTest, ALaterShardEndsAnEarlierOne) {
  ScratchDirectory scratch;
  SessionCluster cluster(SmallJob(), 1);
  ASSERT_OK_AND_ASSIGN(const auto first, cluster.session(0).BeginCheckpoint(
                                             {scratch.path(), 0, "w"}));
  ASSERT_OK_AND_ASSIGN(const auto second, cluster.session(0).BeginCheckpoint(
                                              {scratch.path(), 0, "v"}));
  EXPECT_THAT(first->Write(), StatusIs(absl::StatusCode::kCancelled,
                                       HasSubstr("no longer wanted")));
  EXPECT_OK(second->Write());
}

// Commands for a worker with one session, "job/1".
class CommandsTest : public ::testing::Test {
 protected:
  static WorkerSessionSpec Spec() {
    const TrainingJob job = SmallJob();
    return TrainingSpec(job, SplitTraining(job).segments, {0, 1, 2, 3, 4});
  }

  explicit CommandsTest(int64_t memory = kMemory) : sessions_(memory) {
    CHECK(sessions_.Load("job/1", Spec()).ok());
  }

  std::function<v1::CommandReply()> Write(int64_t step) {
    v1::Command command;
    v1::WriteCheckpoint* const write = command.mutable_write_checkpoint();
    write->set_session("job/1");
    write->set_step(step);
    write->set_root(scratch_.path());
    write->set_shard("worker");
    return commands_.Begin(command);
  }

  ScratchDirectory scratch_;
  Gate gate_{DiskChange::Kind::kCreate, "worker.safetensors"};
  Metrics metrics_{"expert_worker", "test"};
  WorkerMetrics worker_metrics_{metrics_};
  SessionTable sessions_;
  ExpertService service_{&sessions_, ExpertServiceOptions(), worker_metrics_};
  WorkerCommands commands_{&sessions_, &service_, worker_metrics_,
                           nullptr,    nullptr,   &gate_};
};

TEST_F(CommandsTest, RepliesOnceTheShardIsWritten) {
  auto rest = Write(0);
  gate_.Open();
  const v1::CommandReply reply = rest();
  EXPECT_OK(FromProtoStatus(reply.status()));
  EXPECT_GT(reply.checkpoint_written().tensors_size(), 0);
  // The next write may begin although the last one's function still exists.
  EXPECT_OK(FromProtoStatus(Write(0)().status()));
  EXPECT_EQ(FromProtoStatus(Write(1)().status()).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CommandsTest, AbortEndsTheWritingAndUnloadingWaitsForIt) {
  auto rest = Write(0);
  v1::CommandReply reply;
  std::thread writer([&] {
    reply = rest();
    rest = nullptr;
  });
  gate_.WaitUntilReached();
  commands_.Interrupt("job/1");
  v1::Command abort;
  abort.mutable_abort_session()->set_session("job/1");
  std::thread unload([&] { commands_.Handle(abort); });
  while (sessions_.size() > 0) std::this_thread::yield();
  // The session is no longer found, but its memory is still in use.
  EXPECT_GT(sessions_.memory_bytes_used(), 0);
  gate_.Open();
  unload.join();
  writer.join();
  EXPECT_EQ(sessions_.memory_bytes_used(), 0);
  EXPECT_EQ(FromProtoStatus(reply.status()).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(FromProtoStatus(Write(0)().status()).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(CommandsTest, WhatWasDroppedBeforeItBeganHoldsNothing) {
  auto rest = Write(0);
  rest = nullptr;
  commands_.OnLost();
  EXPECT_EQ(sessions_.memory_bytes_used(), 0);
}

TEST_F(CommandsTest, ReservesTheCopyThatAnUpdateMakesMeanwhile) {
  const int64_t session = sessions_.memory_bytes_used();
  ASSERT_OK_AND_ASSIGN(SessionTable::Lease lease, sessions_.Find("job/1"));
  ASSERT_OK_AND_ASSIGN(TrainingWorkerSession* const training,
                       AsTraining(lease.session()));
  ASSERT_OK_AND_ASSIGN(
      auto shard, training->BeginCheckpoint({scratch_.path(), 0, "worker"}));
  EXPECT_TRUE(shard->outlasts_updates());
  // Weights and optimizer state are in the session, beside the gradient sum.
  int64_t weights = 0;
  for (const auto& [name, tensor] : training->Parameters()) {
    weights += static_cast<int64_t>(tensor.bytes());
  }
  EXPECT_EQ(sessions_.memory_bytes_used() - session, session - weights);
  shard = nullptr;
  EXPECT_EQ(sessions_.memory_bytes_used(), session);
}

// A worker whose session leaves one byte too little for a copy.
class TightCommandsTest : public CommandsTest {
 protected:
  TightCommandsTest() : CommandsTest(Memory()) {}

  static int64_t Memory() {
    const MemoryAccount account(kMemory);
    const auto session = WorkerSession::Create(Spec(), account);
    CHECK(session.ok());
    const auto shard =
        (*session)->training()->BeginCheckpoint({"/nowhere", 0, "worker"});
    CHECK(shard.ok());
    return account.used() - 1;
  }
};

TEST_F(TightCommandsTest, WritesFirstWhatAnUpdateHasNoMemoryToCopy) {
  const int64_t session = sessions_.memory_bytes_used();
  gate_.Open();
  const auto rest = Write(0);
  // Nobody has called the rest yet.
  using Files = std::filesystem::recursive_directory_iterator;
  EXPECT_TRUE(
      std::any_of(Files(scratch_.path()), Files(), [](const auto& file) {
        return file.path().filename() == "worker.safetensors";
      }));
  EXPECT_EQ(sessions_.memory_bytes_used(), session);
  const v1::CommandReply reply = rest();
  EXPECT_OK(FromProtoStatus(reply.status()));
  EXPECT_GT(reply.checkpoint_written().tensors_size(), 0);
}

}  // namespace
}  // namespace gshard
