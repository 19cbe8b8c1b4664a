// Sessions whose segments run on a device, against LocalTrainer on the CPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "services/graph/builder.h"
#include "services/partition/ops/collective_ops.h"
#include "services/train/parameter_source.h"
#include "tests/expert_worker/session_cluster.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

class DeviceSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Operators must be registered before their kernels.
    RegisterMoeOps();
    RegisterShardingOps();
    RegisterCollectiveOps();
    RegisterFakeDeviceKernels(ExpertOps());
  }

  SessionCluster MakeCluster(int workers) {
    return SessionCluster(job_, workers, /*buddies=*/false, kMemory,
                          /*window=*/0, &device_);
  }

  const TrainingJob job_ = SmallJob();
  FakeDevice device_;
};

// A device with the CPU's kernels trains to the CPU's bits, in any order of the
// microbatches.
TEST_F(DeviceSessionTest, TrainTheBitsOfOneProcess) {
  for (const TrainingJob& job : {job_, SmallJob(AdamConfig())}) {
    SessionCluster cluster(job, 2, /*buddies=*/false, kMemory, /*window=*/0,
                           &device_);
    for (int step = 0; step < 3; ++step) {
      for (int32_t i = kMicrobatches; i-- > 0;) ASSERT_OK(cluster.Run(i, 0));
      ASSERT_OK(cluster.Commit());
    }
    cluster.ExpectEqual(*Reference(job, 3));
    EXPECT_EQ(cluster.session(0).open_runs(), 0u);
    EXPECT_FALSE(cluster.session(0).Parameters().begin()->second.on_host());
  }
}

TEST_F(DeviceSessionTest, WhatIsHeldStaysAsItIs) {
  SessionCluster cluster = MakeCluster(1);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
  const TensorMap held = cluster.session(0).Parameters();
  const TensorMap before = cluster.Parameters(0);
  ASSERT_OK(cluster.Commit());
  cluster.ExpectEqual(*Reference(job_, 1));
  for (const auto& [name, tensor] : held) {
    ASSERT_OK_AND_ASSIGN(const Tensor now, CopyToHost(device_, tensor));
    EXPECT_TRUE(TensorEqual(now, before.at(name))) << name;
    EXPECT_FALSE(TensorEqual(cluster.Parameters(0).at(name), now)) << name;
  }
}

// Checkpoints of a session on a device equal those of one on the host, replica
// and optimizer state included, also if written after later steps.
TEST_F(DeviceSessionTest, SnapshotsAreOfTheHost) {
  SessionCluster there(job_, 2, /*buddies=*/true, kMemory, /*window=*/0,
                       &device_);
  SessionCluster host(job_, 2, /*buddies=*/true);
  ScratchDirectory scratch;
  std::map<std::string, std::string> digests, expected;
  for (SessionCluster* const cluster : {&there, &host}) {
    std::unique_ptr<TrainingWorkerSession::Shard> shard;
    for (int64_t step = 1; step <= 3; ++step) {
      for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster->Run(i, 0));
      ASSERT_OK(cluster->Commit());
      if (step != 2) continue;
      ASSERT_OK_AND_ASSIGN(
          shard,
          cluster->session(1).BeginCheckpoint(
              {.root = scratch.path() + (cluster == &there ? "/a" : "/b"),
               .step = step,
               .shard = "worker"},
              /*include_replica=*/true));
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<TensorEntry> entries,
                         shard->Write());
    for (const TensorEntry& entry : entries) {
      (cluster == &there ? digests : expected)[entry.name] = entry.sha256;
    }
  }
  EXPECT_EQ(digests, expected);
  // The weights and Adafactor's second moments.
  EXPECT_EQ(digests.size(), 2u * 5u * SpecsOf(job_.model, true).size());
}

// A failed update leaves parameters between two steps, so the session fails.
TEST_F(DeviceSessionTest, AFailedUpdateIsTheEndOfTheSession) {
  SessionCluster cluster = MakeCluster(1);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
  device_.update_error = absl::ResourceExhaustedError("no memory");
  const auto failed =
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory"));
  EXPECT_THAT(cluster.Commit(), failed);
  device_.update_error = absl::OkStatus();
  EXPECT_EQ(cluster.session(0).step(), 0);
  EXPECT_THAT(cluster.Run(0, 1), failed);
  EXPECT_THAT(cluster.session(0).BeginCheckpoint({"", 0, "worker"}), failed);
  EXPECT_THAT(cluster.session(0).CommitStep(1, 1.0, 0.1, /*skip=*/false),
              failed);
}

TEST_F(DeviceSessionTest, AFailedSumIsTheEndOfTheSession) {
  SessionCluster cluster = MakeCluster(1);
  ASSERT_OK(cluster.Run(0, 0));
  device_.add_error = absl::InternalError("a kernel has failed");
  const auto failed =
      StatusIs(absl::StatusCode::kInternal, HasSubstr("a kernel has failed"));
  EXPECT_THAT(cluster.Run(1, 0), failed);
  device_.add_error = absl::OkStatus();
  EXPECT_THAT(cluster.Run(1, 1), failed);
  EXPECT_THAT(cluster.session(0).PrepareStep(1, cluster.attempts()), failed);
}

// Each float input of a call is copied to the device once, although several
// kernels use it: the gradients of the weights and of the rows.
TEST_F(DeviceSessionTest, WhatACallBringsIsCopiedOnce) {
  SegmentHost host(SplitTraining(job_).segments, &device_);
  ASSERT_OK_AND_ASSIGN(
      TensorMap parameters,
      ReadParameters(SpecsOf(job_.model, /*per_expert=*/true), {0, 1},
                     /*checkpoint=*/nullptr, /*seed=*/1, {}, &device_));
  for (const Segment& segment : SplitTraining(job_).segments) {
    TensorMap inputs;
    int64_t floats = 0;
    for (const Node* node : segment.program.NodesOf("input")) {
      const std::string& name = StringAttribute(node->attributes, "name");
      const ValueType& type = segment.program.type(node->outputs[0]);
      if (!absl::StartsWith(name, "call/")) continue;
      const bool integers = type.type == ElementType::kInt32;
      inputs[name] = integers ? Tensor::Ints({2}, {3, 4})
                              : RandomTensor({7, job_.model.model_width}, 1);
      floats += integers ? 0 : 1;
    }
    EXPECT_GT(floats, 0);
    const int64_t before = device_.copies_to_device();
    EXPECT_OK(host.Run(segment.name, "run", inputs, parameters));
    EXPECT_EQ(device_.copies_to_device() - before, floats) << segment.name;
  }
}

TEST_F(DeviceSessionTest, AnErrorOfTheDeviceIsThatOfTheCall) {
  SessionCluster cluster = MakeCluster(1);
  device_.finish_error = absl::InternalError("a kernel has failed");
  EXPECT_THAT(cluster.Run(0, 0), StatusIs(absl::StatusCode::kInternal,
                                          HasSubstr("a kernel has failed")));
  EXPECT_EQ(cluster.session(0).open_runs(), 0u);
  device_.finish_error = absl::OkStatus();
  EXPECT_OK(cluster.Run(0, 1));
}

// If rounding the parameters for the segments fails, the committed step stays
// but later segments fail.
TEST_F(DeviceSessionTest, WithoutItsParametersNothingRuns) {
  TrainingJob job = job_;
  job.model.compute_type = ComputeType::kBFloat16;
  SessionCluster cluster(job, 1, /*buddies=*/false, kMemory, /*window=*/0,
                         &device_);
  for (int32_t i = 0; i < kMicrobatches; ++i) ASSERT_OK(cluster.Run(i, 0));
  device_.round_error = absl::ResourceExhaustedError("no memory");
  ASSERT_OK(cluster.Commit());
  EXPECT_EQ(cluster.session(0).step(), 1);
  device_.round_error = absl::OkStatus();
  EXPECT_THAT(cluster.Run(0, 0), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("no memory")));
  cluster.ExpectEqual(*Reference(job, 1));
}

TEST_F(DeviceSessionTest, IsRefusedIfTheDeviceHasNoMemoryForIt) {
  device_.begin_error = absl::ResourceExhaustedError("no memory");
  const RolePrograms roles = SplitTraining(job_);
  EXPECT_THAT(
      WorkerSession::Create(TrainingSpec(job_, roles.segments, {0, 1}), kMemory,
                            &device_),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory")));
}

TEST_F(DeviceSessionTest, ALackingKernelIsNamedAtLoad) {
  Builder b("no kernel");
  b.Output("reply/v0",
           b.AddOne("exp", {b.Input("call/v0", {ElementType::kFloat32, {2}})}));
  ASSERT_OK_AND_ASSIGN(Program program, std::move(b).Finish());
  std::vector<Segment> segments = SplitTraining(job_).segments;
  segments.push_back({.name = "more", .program = std::move(program)});
  EXPECT_THAT(
      WorkerSession::Create(TrainingSpec(job_, segments, {0, 1}), kMemory,
                            &device_),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("the back end 'cuda' has no kernel for 'exp'")));
}

}  // namespace
}  // namespace gshard
