// Training sessions on several workers against LocalTrainer, bit for bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_worker/training_worker_session.h"
#include "tests/expert_worker/session_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class WorkersTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Workers, WorkersTest, ::testing::Values(1, 2, 3, 5));

TEST_P(WorkersTest, TrainTheBitsOfOneProcess) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(AdafactorConfig()), OptimizerConfig(AdamConfig())}) {
    const TrainingJob job = SmallJob(optimizer);
    SessionCluster cluster(job, GetParam());
    for (int step = 0; step < 3; ++step) {
      for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
      ASSERT_OK(cluster.Commit());
    }
    cluster.ExpectEqual(*Reference(job, 3));
    EXPECT_EQ(cluster.session(0).open_runs(), 0u);
    EXPECT_EQ(cluster.session(0).step(), 3);
  }
}

TEST_P(WorkersTest, NeitherOrderNorFailedAttemptsShow) {
  const TrainingJob job = SmallJob();
  SessionCluster cluster(job, GetParam());
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(cluster.Run(2, 0));
    // The first attempt fails between forward and backward, the second at the
    // start, the third succeeds.
    EXPECT_THAT(cluster.Run(0, 0, /*calls=*/3),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("died")));
    EXPECT_GT(cluster.session(0).open_runs(), 0u);
    EXPECT_THAT(cluster.Run(0, 1, /*calls=*/1),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("died")));
    EXPECT_EQ(cluster.session(0).open_runs(), 1u);
    ASSERT_OK(cluster.Run(0, 4));
    EXPECT_THAT(
        cluster.Run(0, 3),
        StatusIs(kPrecondition, HasSubstr("expected attempt 4, got 3")));
    // Running complete microbatches again is harmless.
    ASSERT_OK(cluster.Run(1, 0));
    ASSERT_OK(cluster.Run(1, 1));
    ASSERT_OK(cluster.Run(2, 1));
    ASSERT_OK(cluster.Commit());
    EXPECT_EQ(cluster.session(0).open_runs(), 0u);
  }
  cluster.ExpectEqual(*Reference(job, 2));
}

TEST(WorkerSessionTest, MicrobatchesRunAtTheSameTime) {
  const TrainingJob job = SmallJob();
  SessionCluster cluster(job, 2);
  const MicrobatchRunner runner(job.model, cluster.roles().router);
  ASSERT_OK_AND_ASSIGN(
      const TensorMap dense,
      ReadParameters(SpecsOf(job.model, false), {}, nullptr, job.seed));
  std::vector<std::thread> routers;
  for (int32_t i = 0; i < kMicrobatches; ++i) {
    routers.emplace_back([&, i] {
      SegmentRun run;
      run.step = 1;
      run.microbatch = i;
      SessionSegments segments(DealExperts(5, 2), cluster.pointers(), run);
      EXPECT_OK(
          runner.Run(RandomBatch(1, i), job.seed, 1, i, dense, &segments));
    });
  }
  for (std::thread& router : routers) router.join();
  std::vector<SquaredNorm> together;
  for (int w = 0; w < 2; ++w) {
    ASSERT_OK_AND_ASSIGN(const auto norms,
                         cluster.session(w).PrepareStep(1, cluster.attempts()));
    together.insert(together.end(), norms.begin(), norms.end());
  }

  SessionCluster serial(job, 1);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(serial.Run(i, 0));
  ASSERT_OK_AND_ASSIGN(const auto norms,
                       serial.session(0).PrepareStep(1, serial.attempts()));
  EXPECT_EQ(TotalSquaredNorm(together), TotalSquaredNorm(norms));
  EXPECT_GT(TotalSquaredNorm(norms), 0.0);
}

// The most memory that one microbatch holds while it runs, in a session on one
// worker.
int64_t MostKept(int32_t index, int64_t* session_bytes) {
  const MemoryAccount memory(kMemory);
  SessionCluster cluster(SmallJob(), 1, /*buddies=*/false, memory);
  *session_bytes = memory.used();
  int64_t most = 0;
  for (int calls = 1;; ++calls) {
    const absl::Status status = cluster.Run(index, calls, calls);
    most = std::max(most, memory.used() - *session_bytes);
    if (status.ok()) break;
  }
  int64_t gradient = 0;
  for (const auto& [name, tensor] : cluster.session(0).Parameters()) {
    gradient += static_cast<int64_t>(tensor.bytes());
  }
  // Gradients of later microbatches wait for microbatch 0.
  EXPECT_EQ(memory.used() - *session_bytes, index == 0 ? 0 : gradient);
  // The last call adds the gradients of one layer.
  return most + gradient / std::ssize(MoeLayerNames(SmallJob().model));
}

TEST(WorkerSessionTest, MicrobatchesMakeWayForEarlierOnes) {
  const TrainingJob job = SmallJob();
  int64_t session_bytes = 0, most = 0;
  for (int32_t i = 0; i < kMicrobatches; ++i) {
    most = std::max(most, MostKept(i, &session_bytes));
  }
  EXPECT_GT(most, 0);
  // The memory limit admits one microbatch.
  const MemoryAccount memory(session_bytes + most);
  SessionCluster cluster(job, 1, /*buddies=*/false, memory);
  TrainingWorkerSession& session = cluster.session(0);
  const auto half = [&](int32_t index, int32_t attempt) {
    return cluster.Run(index, attempt, /*calls=*/3);
  };
  EXPECT_THAT(half(0, 0), StatusIs(kUnavailable, HasSubstr("died")));
  // Later microbatches wait for microbatch 0, whose rerun makes them give way.
  EXPECT_THAT(cluster.Run(1, 0), StatusIs(kExhausted, HasSubstr("are free")));
  EXPECT_THAT(cluster.Run(2, 0), StatusIs(kExhausted, HasSubstr("are free")));
  EXPECT_EQ(session.open_runs(), 1u);
  session.EndRuns(/*owner=*/1);
  EXPECT_EQ(memory.used(), session_bytes);
  EXPECT_THAT(half(2, 1), StatusIs(kUnavailable, HasSubstr("died")));
  ASSERT_OK(cluster.Run(0, 1));
  EXPECT_EQ(session.open_runs(), 0u);
  EXPECT_THAT(cluster.Run(2, 1),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("has made way")));
  EXPECT_EQ(memory.used(), session_bytes);
  // The microbatches run in order, since an early one and another do not both
  // fit.
  ASSERT_OK(cluster.Run(1, 1));
  ASSERT_OK(cluster.Run(2, 2));
  ASSERT_OK(cluster.Commit());
  EXPECT_EQ(memory.used(), session_bytes);
  cluster.ExpectEqual(*Reference(job, 1));
}

TEST(WorkerSessionTest, KeepsNoMoreEarlyMicrobatchesThanItsWindowHas) {
  const TrainingJob job = SmallJob();
  const MemoryAccount memory(kMemory);
  SessionCluster cluster(job, 1, /*buddies=*/false, memory, /*window=*/2);
  const int64_t session_bytes = memory.used();
  int64_t gradient = 0;
  for (const auto& [name, tensor] : cluster.session(0).Parameters()) {
    gradient += static_cast<int64_t>(tensor.bytes());
  }
  ASSERT_OK(cluster.Run(1, 0));
  EXPECT_EQ(memory.used() - session_bytes, gradient);
  ASSERT_OK(cluster.Run(1, 1));  // a rerun, which has no effect
  EXPECT_EQ(memory.used() - session_bytes, gradient);
  EXPECT_THAT(cluster.Run(2, 0),
              StatusIs(kExhausted, HasSubstr("before microbatch 0 is added")));
  EXPECT_EQ(memory.used() - session_bytes, gradient);
  ASSERT_OK(cluster.Run(0, 0));
  EXPECT_EQ(memory.used(), session_bytes);
  ASSERT_OK(cluster.Run(2, 1));
  ASSERT_OK(cluster.Commit());
  cluster.ExpectEqual(*Reference(job, 1));
}

// Completed microbatches hold no memory once they are summed, in any
// interleaving of their last calls: one call extends the sum, and others find
// their microbatches already in it.
TEST(WorkerSessionTest, WhatIsInTheSumIsNobodysMemory) {
  const TrainingJob job = SmallJob();
  const MemoryAccount memory(kMemory);
  SessionCluster cluster(job, 1, /*buddies=*/false, memory);
  TrainingWorkerSession& session = cluster.session(0);
  const int64_t session_bytes = memory.used();
  const MicrobatchRunner runner(job.model, cluster.roles().router);
  ASSERT_OK_AND_ASSIGN(
      const TensorMap dense,
      ReadParameters(SpecsOf(job.model, false), {}, nullptr, job.seed));
  for (int64_t step = 1; step <= 100; ++step) {
    std::vector<std::thread> routers;
    for (int32_t i = 0; i < kMicrobatches; ++i) {
      routers.emplace_back([&, i] {
        SegmentRun run;
        run.step = step;
        run.microbatch = i;
        SessionSegments segments(DealExperts(5, 1), {&session}, run);
        EXPECT_OK(
            runner.Run(RandomBatch(1, i), job.seed, step, i, dense, &segments));
      });
    }
    for (std::thread& router : routers) router.join();
    ASSERT_EQ(memory.used(), session_bytes) << "step " << step;
    ASSERT_OK(session.PrepareStep(step, {0, 0, 0}));
    ASSERT_OK(session.CommitStep(step, 1.0, 0.0, /*skip=*/true));
  }
}

TEST(WorkerSessionTest, StepsAreTransactions) {
  SessionCluster cluster(SmallJob(), 1);
  TrainingWorkerSession& session = cluster.session(0);
  const std::vector<int32_t> none(kMicrobatches, 0);
  EXPECT_THAT(session.PrepareStep(1, none),
              StatusIs(kPrecondition, HasSubstr("microbatch 0")));
  EXPECT_THAT(session.CommitStep(1, 1.0, 1.0, false),
              StatusIs(kPrecondition, HasSubstr("not prepared")));
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));

  EXPECT_THAT(session.PrepareStep(2, none),
              StatusIs(kPrecondition, HasSubstr("expected step 1, got 2")));
  EXPECT_THAT(session.PrepareStep(1, {0, 0}),
              StatusIs(kInvalid, HasSubstr("3 microbatches, got 2")));
  EXPECT_THAT(
      session.PrepareStep(1, {0, 1, 0}),
      StatusIs(kPrecondition, HasSubstr("microbatch 1: expected attempt 1")));
  ASSERT_OK_AND_ASSIGN(const auto norms, session.PrepareStep(1, none));
  ASSERT_OK_AND_ASSIGN(const auto again, session.PrepareStep(1, none));
  ASSERT_EQ(norms.size(), again.size());
  EXPECT_EQ(TotalSquaredNorm(norms), TotalSquaredNorm(again));
  EXPECT_THAT(session.PrepareStep(1, {0, 1, 0}),
              StatusIs(kPrecondition, HasSubstr("other attempts")));
  EXPECT_THAT(cluster.Run(0, 1),
              StatusIs(kPrecondition, HasSubstr("step 1 is prepared")));

  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(session.CommitStep(1, nan, 1.0, false),
              StatusIs(kInvalid, HasSubstr("gradient_scale")));
  EXPECT_THAT(session.CommitStep(1, 1.0, nan, false),
              StatusIs(kInvalid, HasSubstr("learning_rate")));
  const TensorMap before = session.Parameters();
  ASSERT_OK(session.CommitStep(1, 0.1, 0.1, false));
  const TensorMap after = session.Parameters();
  ASSERT_OK(session.CommitStep(1, 0.1, 0.1, false));
  for (const auto& [name, tensor] : session.Parameters()) {
    EXPECT_TRUE(TensorEqual(tensor, after.at(name))) << name;
    EXPECT_FALSE(TensorEqual(tensor, before.at(name))) << name;
  }
  EXPECT_THAT(cluster.Run(0, 0),
              StatusIs(kPrecondition, HasSubstr("gradients of step 2, got 1")));
}

TEST(WorkerSessionTest, ASkippedStepLeavesTheParameters) {
  SessionCluster cluster(SmallJob(), 1);
  TrainingWorkerSession& session = cluster.session(0);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
  ASSERT_OK(session.PrepareStep(1, cluster.attempts()));
  const TensorMap before = session.Parameters();
  ASSERT_OK(session.CommitStep(1, 1.0, 1.0, /*skip=*/true));
  EXPECT_EQ(session.step(), 1);
  for (const auto& [name, tensor] : session.Parameters()) {
    EXPECT_TRUE(TensorEqual(tensor, before.at(name))) << name;
  }
}

TEST(WorkerSessionTest, EndsTheRunsOfAnOwnerOnly) {
  SessionCluster cluster(SmallJob(), 1);
  TrainingWorkerSession& session = cluster.session(0);
  EXPECT_THAT(cluster.Run(0, 0, /*calls=*/2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("died")));
  EXPECT_EQ(session.open_runs(), 1u);
  session.EndRuns(/*owner=*/2);
  EXPECT_EQ(session.open_runs(), 1u);
  session.EndRuns(/*owner=*/1);
  EXPECT_EQ(session.open_runs(), 0u);
}

// Aborting a microbatch does not wait for its running segment: the aborted
// attempt is refused, and only the next attempt runs.
TEST(WorkerSessionTest, AnAttemptThatWasGivenUpIsRefusedUntilTheNext) {
  const TrainingJob job = SmallJob();
  const MemoryAccount memory(kMemory);
  SessionCluster cluster(job, 1, /*buddies=*/false, memory);
  TrainingWorkerSession& session = cluster.session(0);
  const int64_t session_bytes = memory.used();
  for (int32_t attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THAT(cluster.Run(0, attempt, /*calls=*/attempt + 1),
                StatusIs(kUnavailable, HasSubstr("died")));
    session.EndRuns(/*owner=*/1);
    EXPECT_THAT(cluster.Run(0, attempt), StatusIs(absl::StatusCode::kAborted,
                                                  HasSubstr("has made way")));
    EXPECT_EQ(session.open_runs(), 0u);
    EXPECT_EQ(memory.used(), session_bytes);
  }
  ASSERT_OK(cluster.Run(0, 3));
  // Already summed, so aborting it has no effect.
  session.EndRuns(/*owner=*/1);
  ASSERT_OK(cluster.Run(0, 3));
  for (const int32_t i : {1, 2}) ASSERT_OK(cluster.Run(i, 0));
  ASSERT_OK(cluster.Commit());
  cluster.ExpectEqual(*Reference(job, 1));
}

// Microbatches whose runs are aborted at arbitrary moments end with the bits of
// one process and leak no memory.
TEST(WorkerSessionTest, RoutersThatAreLostAtAnyMomentDoNotShow) {
  const TrainingJob job = SmallJob();
  const MemoryAccount memory(kMemory);
  SessionCluster cluster(job, 1, /*buddies=*/false, memory);
  TrainingWorkerSession& session = cluster.session(0);
  const int64_t session_bytes = memory.used();
  for (int step = 0; step < 10; ++step) {
    std::atomic<bool> over = false;
    std::thread losses([&] {
      while (!over) {
        session.EndRuns(/*owner=*/1);
        std::this_thread::yield();
      }
    });
    for (int32_t i = 0; i < kMicrobatches; ++i) {
      for (int32_t attempt = 0; attempt < 5; ++attempt) {
        const absl::Status status = cluster.Run(i, attempt);
        if (status.ok()) break;
        EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      }
    }
    over = true;
    losses.join();
    for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 5));
    EXPECT_EQ(session.open_runs(), 0u);
    EXPECT_EQ(memory.used(), session_bytes);
    ASSERT_OK(cluster.Commit());
  }
  cluster.ExpectEqual(*Reference(job, 10));
}

TEST(WorkerSessionTest, RefusesMicrobatchesThatThereAreNot) {
  SessionCluster cluster(SmallJob(), 1);
  TrainingWorkerSession& session = cluster.session(0);
  SegmentRun run;
  run.segment = cluster.roles().segments[0].name;
  run.step = 1;
  run.microbatch = kMicrobatches;
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(kInvalid, HasSubstr("microbatch: expected 0 to 2")));
  run.microbatch = -1;
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(kInvalid, HasSubstr("microbatch: expected 0 to 2")));
  run.microbatch = 0;
  run.attempt = -1;
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(kInvalid, HasSubstr("attempt of at least 0")));
  run.attempt = 0;
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(kInvalid, HasSubstr("inputs, got 0")));
  run.segment = "nothing";
  EXPECT_THAT(session.RunSegment(run, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
  EXPECT_EQ(session.open_runs(), 0u);
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    char name[] = "/tmp/gshard_session_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~CheckpointTest() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_F(CheckpointTest, TrainingGoesOnOnOtherWorkers) {
  const TrainingJob job = SmallJob();
  SessionCluster cluster(job, 2);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
  ASSERT_OK(cluster.Commit());

  EXPECT_THAT(cluster.session(0).BeginCheckpoint({root_, 2, "worker-0"}),
              StatusIs(kPrecondition, HasSubstr("committed, 1, got 2")));
  Manifest manifest;
  manifest.step = 1;
  for (int w = 0; w < 2; ++w) {
    ASSERT_OK_AND_ASSIGN(const auto shard,
                         cluster.session(w).BeginCheckpoint(
                             {root_, 1, absl::StrCat("worker-", w)}));
    ASSERT_OK_AND_ASSIGN(const auto entries, shard->Write());
    manifest.tensors.insert(manifest.tensors.end(), entries.begin(),
                            entries.end());
  }
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(root_, manifest, ""));

  WorkerSessionSpec spec = TrainingSpec(job, cluster.roles().segments, {3, 4});
  spec.source.checkpoint_directory = path;
  spec.source.step = 7;
  EXPECT_THAT(WorkerSession::Create(spec, kMemory),
              StatusIs(kPrecondition, HasSubstr("step 7, got 1")));
  spec.source.step = 1;
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(spec, kMemory));
  EXPECT_EQ(session->training()->step(), 1);
  const auto reference = Reference(job, 1);
  for (const auto& [name, tensor] : session->training()->Parameters()) {
    EXPECT_TRUE(TensorEqual(
        tensor, reference->parameters().tensors().at(name).Rows(3, 5)))
        << name;
  }
  spec.source.checkpoint_directory = root_ + "/nothing";
  EXPECT_THAT(WorkerSession::Create(spec, kMemory),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
}

}  // namespace
}  // namespace gshard
