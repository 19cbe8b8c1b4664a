// Buddies: each worker keeps a replica of another worker's experts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_worker/buddy_link.h"
#include "expert_worker/expert_service.h"
#include "services/base/thread_priority.h"
#include "services/moe/graph_ops.h"
#include "services/partition/ops/collective_ops.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/client/tensor_transfer.h"
#include "services/rpc/server/server.h"
#include "services/rpc/wire/status.h"
#include "tests/expert_worker/session_cluster.h"
#include "tests/integration/temporary_directory.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/services/train/step_contract.h"
#include "tests/testing/fake_device.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

void RunMicrobatches(SessionCluster& cluster) {
  for (int32_t m = 0; m < kMicrobatches; ++m) {
    ASSERT_OK(cluster.Run(m, /*attempt=*/0));
  }
}

// The checksums, by tensor, of the checkpoint that a session writes.
std::map<std::string, std::string> Written(const TrainingWorkerSession& session,
                                           int64_t step, bool include_replica) {
  ScratchDirectory scratch;
  const auto shard =
      session.BeginCheckpoint({scratch.path(), step, "w"}, include_replica);
  EXPECT_OK(shard);
  std::map<std::string, std::string> sums;
  if (!shard.ok()) return sums;
  const auto entries = (*shard)->Write();
  EXPECT_OK(entries);
  if (!entries.ok()) return sums;
  for (const TensorEntry& entry : *entries) sums[entry.name] = entry.sha256;
  return sums;
}

TEST(BuddyTest, AReplicaHasTheBitsOfWhatItReplicates) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(AdafactorConfig()), OptimizerConfig(AdamConfig())}) {
    SessionCluster cluster(SmallJob(optimizer), 3, /*buddies=*/true);
    for (int64_t step = 1; step <= 3; ++step) {
      RunMicrobatches(cluster);
      ASSERT_OK(cluster.Commit());
      for (int w = 0; w < 3; ++w) {
        const auto own = Written(cluster.session(w), step, false);
        const auto before =
            Written(cluster.session(cluster.Before(w)), step, false);
        auto both = own;
        both.insert(before.begin(), before.end());
        EXPECT_EQ(Written(cluster.session(w), step, true), both);
        EXPECT_GT(both.size(), own.size());
      }
    }
    cluster.ExpectEqual(*Reference(SmallJob(optimizer), 3));
  }
}

TEST(BuddyTest, AReplicaIsLoadedAsItsOriginal) {
  ScratchDirectory scratch;
  const TrainingJob job = SmallJob(AdamConfig());
  SessionCluster cluster(job, 2, /*buddies=*/true);
  RunMicrobatches(cluster);
  ASSERT_OK(cluster.Commit());
  ASSERT_OK_AND_ASSIGN(const auto shard, cluster.session(0).BeginCheckpoint(
                                             {scratch.path(), 1, "w"}, true));
  Manifest manifest;
  manifest.step = 1;
  ASSERT_OK_AND_ASSIGN(manifest.tensors, shard->Write());
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(scratch.path(), manifest, ""));
  WorkerSessionSpec spec =
      TrainingSpec(job, cluster.roles().segments, cluster.experts(1));
  spec.replicated_experts = cluster.experts(0);
  spec.source.checkpoint_directory = path;
  spec.source.step = 1;
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(spec, kMemory));
  EXPECT_EQ(Written(*session->training(), 1, true),
            Written(cluster.session(1), 1, true));
}

TEST(BuddyTest, NothingIsCommittedBeforeTheSumsAreThere) {
  SessionCluster cluster(SmallJob(), 2, /*buddies=*/true);
  RunMicrobatches(cluster);
  TrainingWorkerSession& owner = cluster.session(0);
  TrainingWorkerSession& buddy = cluster.session(1);
  EXPECT_THAT(owner.PreparedGradients(1),
              StatusIs(kPrecondition, HasSubstr("not prepared")));
  ASSERT_OK(owner.PrepareStep(1, cluster.attempts()));
  ASSERT_OK(buddy.PrepareStep(1, cluster.attempts()));
  const auto before = Written(buddy, 0, true);
  EXPECT_THAT(buddy.CommitStep(1, 1.0, 0.1, false),
              StatusIs(kPrecondition,
                       HasSubstr("the replica of another worker's experts: "
                                 "step 1 is not prepared")));
  EXPECT_EQ(buddy.step(), 0);
  EXPECT_EQ(Written(buddy, 0, true), before);

  ASSERT_OK_AND_ASSIGN(GradientList sums, owner.PreparedGradients(1));
  EXPECT_THAT(buddy.ReplicateGradients(2, sums),
              StatusIs(kPrecondition, HasSubstr("expected step 1, got 2")));
  GradientList wrong = sums;
  wrong[0].second = RandomTensor({1}, 1);
  EXPECT_THAT(buddy.ReplicateGradients(1, wrong),
              StatusIs(kInvalid, HasSubstr("expected f32")));
  ASSERT_OK(buddy.ReplicateGradients(1, sums));
  // The first push counts; later ones are ignored, before and after the commit.
  for (auto& [name, sum] : sums) sum = RandomTensor(sum.dims(), 7);
  ASSERT_OK(buddy.ReplicateGradients(1, sums));
  ASSERT_OK(buddy.CommitStep(1, 1.0, 0.1, false));
  ASSERT_OK(buddy.ReplicateGradients(1, sums));
  ASSERT_OK(buddy.CommitStep(1, 1.0, 0.1, false));
}

TEST(BuddyTest, ASkippedStepChangesNoReplica) {
  SessionCluster cluster(SmallJob(), 2, /*buddies=*/true);
  RunMicrobatches(cluster);
  const auto before = Written(cluster.session(1), 0, true);
  ASSERT_OK(cluster.session(0).PrepareStep(1, cluster.attempts()));
  ASSERT_OK(cluster.session(1).PrepareStep(1, cluster.attempts()));
  ASSERT_OK_AND_ASSIGN(const GradientList sums,
                       cluster.session(0).PreparedGradients(1));
  ASSERT_OK(cluster.session(1).ReplicateGradients(1, sums));
  ASSERT_OK(cluster.session(1).CommitStep(1, 0.0, 0.0, /*skip=*/true));
  EXPECT_EQ(Written(cluster.session(1), 1, true), before);
}

TEST(BuddyTest, SpecsOfReplicasAreCheckedAndTheirMemoryCounts) {
  const TrainingJob job = SmallJob();
  const auto segments = SplitTraining(job).segments;
  const auto check = [&](std::vector<int32_t> replicated, bool serving) {
    WorkerSessionSpec spec = TrainingSpec(job, segments, {1, 2});
    spec.replicated_experts = std::move(replicated);
    if (serving) spec.optimizer = nullptr;
    return CheckWorkerSession(spec);
  };
  EXPECT_THAT(check({3, 0}, false), StatusIs(kInvalid, HasSubstr("ascending")));
  EXPECT_THAT(check({5}, false), StatusIs(kInvalid, HasSubstr("below 5")));
  EXPECT_THAT(check({0, 2}, false), StatusIs(kInvalid, HasSubstr("own")));
  EXPECT_THAT(check({0}, true), StatusIs(kInvalid, HasSubstr("in serving")));
  ASSERT_OK_AND_ASSIGN(const int64_t alone, check({}, false));
  ASSERT_OK_AND_ASSIGN(const int64_t doubled, check({0, 4}, false));
  EXPECT_EQ(doubled, 2 * alone);
}

TEST(BuddyTest, StepsOfOwnExpertsAndReplicaAreTransactions) {
  const TrainingJob job = SmallJob();
  SessionCluster cluster(job, 2, /*buddies=*/true);
  const MicrobatchRunner runner(job.model, cluster.roles().router);
  ASSERT_OK_AND_ASSIGN(
      const TensorMap dense,
      ReadParameters(SpecsOf(job.model, false), {}, nullptr, job.seed));
  TrainingWorkerSession& owner = cluster.session(0);
  TrainingWorkerSession& buddy = cluster.session(1);
  ExpectTransactions(
      {.fill =
           [&](int64_t step) {
             for (int32_t i = 0; i < kMicrobatches; ++i) {
               SegmentRun run;
               run.step = step;
               run.microbatch = i;
               SessionSegments segments(
                   {cluster.experts(0), cluster.experts(1)}, cluster.pointers(),
                   run);
               ASSERT_OK(runner.Run(RandomBatch(step, i), job.seed, step, i,
                                    dense, &segments));
             }
           },
       .prepare =
           [&](int64_t step) -> absl::StatusOr<std::vector<SquaredNorm>> {
         RETURN_IF_ERROR(owner.PrepareStep(step, cluster.attempts()).status());
         ASSIGN_OR_RETURN(GradientList sums, owner.PreparedGradients(step));
         RETURN_IF_ERROR(buddy.ReplicateGradients(step, std::move(sums)));
         ASSIGN_OR_RETURN(const auto norms,
                          buddy.PrepareStep(step, cluster.attempts()));
         ASSIGN_OR_RETURN(sums, buddy.PreparedGradients(step));
         RETURN_IF_ERROR(owner.ReplicateGradients(step, std::move(sums)));
         return norms;
       },
       .commit =
           [&](int64_t step, double scale, double rate, bool skip) {
             const absl::Status status =
                 owner.CommitStep(step, scale, rate, skip);
             EXPECT_EQ(buddy.CommitStep(step, scale, rate, skip), status);
             return status;
           },
       .contents = [&] { return Written(buddy, buddy.step(), true); }});
}

TEST(BuddyTest, LargeSumsHaveTimeForASlowNetwork) {
  EXPECT_EQ(PushTimeout(0), std::chrono::seconds(60));
  EXPECT_EQ(PushTimeout(kMinPushBytesPerSecond), std::chrono::seconds(61));
  // At 1 Gb/s they take more than three minutes.
  const int64_t bytes = int64_t{24} << 30;
  EXPECT_GT(PushTimeout(bytes), std::chrono::seconds(bytes / 125'000'000));
}

// The service of a worker with one session that replicates another's experts.
class BuddyServiceTest : public ::testing::Test {
 protected:
  explicit BuddyServiceTest(std::shared_ptr<Device> device = nullptr,
                            int niceness = 0)
      : job_(SmallJob()),
        cluster_(job_, 2),
        sessions_(kMemory, std::move(device)),
        service_(&sessions_, Options(niceness)) {
    server_.AddService(&service_, v1::ExpertWorkerService::service_full_name());
    CHECK(server_.Start().ok());
    WorkerSessionSpec spec =
        TrainingSpec(job_, cluster_.roles().segments, cluster_.experts(1));
    spec.replicated_experts = cluster_.experts(0);
    CHECK(sessions_.Load("job/1", std::move(spec)).ok());
    RunMicrobatches(cluster_);
    CHECK(cluster_.session(0).PrepareStep(1, cluster_.attempts()).ok());
    sums_ = *cluster_.session(0).PreparedGradients(1);
  }

  static ExpertServiceOptions Options(int niceness) {
    ExpertServiceOptions options;
    options.queue.niceness = niceness;
    return options;
  }

  absl::Status Push(const std::string& session, int64_t step,
                    const NamedTensors& sums) {
    v1::TensorFrameHeader header;
    header.set_session(session);
    header.set_step(step);
    return ReplicateGradients(*CreateChannel(server_.address()), header, sums,
                              std::chrono::minutes(1));
  }

  const TrainingJob job_;
  SessionCluster cluster_;
  GradientList sums_;
  TemporaryDirectory directory_;
  SessionTable sessions_;
  ExpertService service_;
  ServerShell server_{
      ServerOptions{.address = "unix:" + directory_.path() + "/worker"}};
};

TEST_F(BuddyServiceTest, TakesWhatFitsAndNothingElse) {
  const NamedTensors good(sums_.begin(), sums_.end());
  EXPECT_OK(Push("job/1", 1, good));
  EXPECT_OK(Push("job/1", 1, good));
  EXPECT_THAT(Push("job/2", 1, good),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("job/2")));
  EXPECT_THAT(Push("job/1", 3, good), StatusIs(kPrecondition, HasSubstr("3")));
  NamedTensors missing = good;
  missing.erase(missing.begin());
  EXPECT_THAT(Push("job/1", 1, missing), StatusIs(kInvalid, HasSubstr("")));
  NamedTensors unknown = good;
  unknown["other"] = RandomTensor({2}, 1);
  EXPECT_THAT(Push("job/1", 1, unknown),
              StatusIs(kInvalid, HasSubstr("other")));
  NamedTensors misshapen = good;
  misshapen.begin()->second = RandomTensor({2}, 1);
  EXPECT_THAT(Push("job/1", 1, misshapen), StatusIs(kInvalid, HasSubstr("")));
  ASSERT_OK(sessions_.Load(
      "job/3",
      TrainingSpec(job_, cluster_.roles().segments, cluster_.experts(1))));
  EXPECT_THAT(Push("job/3", 1, good),
              StatusIs(kPrecondition, HasSubstr("keeps no replica")));
}

// On a device, which sees the threads that use it.
class NiceBuddyTest : public BuddyServiceTest {
 protected:
  static constexpr int kNiceness = 3;

  NiceBuddyTest() : NiceBuddyTest(MakeDevice()) {}

  const std::shared_ptr<const FakeDevice> device_;

 private:
  static std::shared_ptr<FakeDevice> MakeDevice() {
    // Operators must be registered before their kernels.
    RegisterMoeOps();
    RegisterShardingOps();
    RegisterCollectiveOps();
    RegisterFakeDeviceKernels(ExpertOps());
    return std::make_shared<FakeDevice>();
  }
  explicit NiceBuddyTest(std::shared_ptr<FakeDevice> device)
      : BuddyServiceTest(device, ThreadNiceness() + kNiceness),
        device_(std::move(device)) {}
};

TEST_F(NiceBuddyTest, WorkForReplicasMakesWayForTranslations) {
  const int64_t before = device_->runs();
  ASSERT_OK(Push("job/1", 1, {sums_.begin(), sums_.end()}));
  EXPECT_GT(device_->runs(), before);
  EXPECT_EQ(device_->niceness(), ThreadNiceness() + kNiceness);
}

TEST_F(BuddyServiceTest, LinksSayWhoCouldNotBeReached) {
  ASSERT_OK_AND_ASSIGN(const auto link,
                       BuddyLink::Create("job/1", server_.address()));
  EXPECT_OK(link->Push(1, sums_));
  ASSERT_OK_AND_ASSIGN(const auto other,
                       BuddyLink::Create("job/9", server_.address()));
  EXPECT_THAT(other->Push(1, sums_), StatusIs(absl::StatusCode::kUnavailable,
                                              HasSubstr(server_.address())));
  server_.Drain(std::chrono::milliseconds(0));
  EXPECT_THAT(link->Push(1, sums_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("buddy")));
}

// The buddy accepts connections but never answers.
TEST_F(BuddyServiceTest, AnAbortEndsWaitingForABuddyThatHangs) {
  const std::string path = directory_.path() + "/silent";
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(
      ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
      0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ASSERT_OK_AND_ASSIGN(const auto link,
                       BuddyLink::Create("job/1", "unix:" + path));
  absl::Status pushed;
  std::thread push([&] { pushed = link->Push(1, sums_); });
  const int connection = ::accept(listener, nullptr, nullptr);
  link->Stop();
  push.join();
  EXPECT_EQ(pushed.code(), absl::StatusCode::kCancelled);
  ::close(connection);
  ::close(listener);
}

}  // namespace
}  // namespace gshard
