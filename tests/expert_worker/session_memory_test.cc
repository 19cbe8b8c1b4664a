// The memory that the coordinator plans for experts equals what a worker takes
// from its account, and bounds what it allocates.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "expert_worker/session_proto.h"
#include "expert_worker/worker_session.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/coordinator/membership/training_memory.h"
#include "services/tensor/buffer.h"
#include "tests/expert_worker/training_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

class SessionMemoryTest : public ::testing::TestWithParam<
                              std::tuple<OptimizerConfig, ComputeType, bool>> {
 protected:
  SessionMemoryTest() {
    RegisterMoeOps();
    RegisterShardingOps();
    job_ = SmallJob(std::get<0>(GetParam()));
    job_.model.model_width = 128;
    job_.model.expert_width = 160;
    job_.model.expert_bias = true;
    job_.model.compute_type = std::get<1>(GetParam());
    job_.recovery.buddies = std::get<2>(GetParam());
    job_.data.train_files.clear();
  }

  TrainingJob job_;
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, SessionMemoryTest,
    ::testing::Combine(::testing::Values(OptimizerConfig(AdafactorConfig()),
                                         OptimizerConfig(AdamConfig())),
                       ::testing::Values(ComputeType::kFloat32,
                                         ComputeType::kBFloat16),
                       ::testing::Bool()));

TEST_P(SessionMemoryTest, TrainingTakesWhatTheCoordinatorReckonsWith) {
  std::vector<Member> workers(2);
  workers[0].info.id = "a";
  workers[0].info.address = "unix:/a";
  workers[1].info.id = "b";
  workers[1].info.address = "unix:/b";
  ASSERT_OK_AND_ASSIGN(
      const SessionPlan plan,
      PlanTraining("small/1", job_, TrainingStart(), workers, 0, 1));
  ASSERT_EQ(plan.worker_loads.size(), 2u);
  for (const v1::LoadSession& load : plan.worker_loads) {
    ASSERT_OK_AND_ASSIGN(WorkerSessionSpec spec, WorkerSessionFromProto(load));
    EXPECT_EQ(spec.replicated_experts.empty(), !job_.recovery.buddies);
    const TrainingMemory expected = MemoryOfWorker(
        job_, std::ssize(spec.experts), std::ssize(spec.replicated_experts));
    const MemoryAccount account(kMemory);
    const auto before = static_cast<double>(GetBufferUsage().live_bytes);
    ASSERT_OK_AND_ASSIGN(const auto session,
                         WorkerSession::Create(std::move(spec), account));
    const double held =
        static_cast<double>(GetBufferUsage().live_bytes) - before;
    EXPECT_EQ(account.used(), expected.parameters + expected.sum);
    // The sum is allocated with the first gradients; blocks have some slack.
    EXPECT_GE(held, expected.parameters);
    EXPECT_LE(held, expected.parameters * 9 / 8);
  }
}

TEST_P(SessionMemoryTest, ServingTakesWhatTheCoordinatorReckonsWith) {
  ASSERT_OK_AND_ASSIGN(const ServingPlan plan,
                       PlanServing("small@1", job_.model, "/nowhere"));
  v1::LoadSession load = plan.worker_load;
  for (const int32_t expert : {0, 3}) {
    load.mutable_worker()->add_experts(expert);
  }
  ASSERT_OK_AND_ASSIGN(const WorkerSessionSpec spec,
                       WorkerSessionFromProto(load));
  ASSERT_OK_AND_ASSIGN(const int64_t bytes, CheckWorkerSession(spec));
  EXPECT_EQ(bytes, 2 * plan.expert_bytes);
}

}  // namespace
}  // namespace gshard
