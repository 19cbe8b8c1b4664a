// Experts of served models get replicas by the rows that routers report.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "services/coordinator/serving/served_models.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using Counts = std::vector<int>;

// A model with 3 experts, each on one of 3 workers.
class HotExpertsTest : public ::testing::Test {
 protected:
  HotExpertsTest()
      : cluster_(CoordinatorOptions{
            .lease = absl::Seconds(1),  // 5 heartbeats per lease
            .replicas = 1,
            .watch_interval = absl::Milliseconds(1),
            .load_half_life = absl::Milliseconds(100)}) {
    router_ = &cluster_.AddRouter("r");
    for (const char* name : {"w0", "w1", "w2"}) cluster_.AddWorker(name);
    while (cluster_.Describe().members_size() != 4) std::this_thread::yield();
  }

  // Trains the model and serves it.
  void Load() {
    const TrainingJob job = cluster_.MakeJob();
    ASSERT_OK(cluster_.Submit(job));
    ASSERT_OK(cluster_.LoadModel(
        "m", "1", cluster_.Watch(job.name).back().checkpoint_directory()));
    WaitFor({1, 1, 1});
  }

  // The current placement of the model.
  v1::Placement Placed() {
    v1::Placement placement;
    const v1::DescribeResponse state =
        cluster_.Describe(/*include_experts=*/true);
    for (const v1::SessionInfo& session : state.sessions()) {
      if (session.session() != "m@1") continue;
      EXPECT_EQ(session.state(), v1::SessionInfo::READY);
      EXPECT_EQ(session.experts_unavailable(), 0);
      placement = session.placement();
    }
    return placement;
  }
  // How many workers hold each expert.
  static Counts CountsOf(const v1::Placement& placement) {
    Counts counts(3);
    for (const v1::WorkerPlacement& bundle : placement.workers()) {
      for (const int32_t expert : bundle.experts()) ++counts.at(expert);
    }
    return counts;
  }
  // Returns once experts have these counts and the router has that placement.
  void WaitFor(const Counts& expected) {
    while (true) {
      const v1::Placement placement = Placed();
      if (CountsOf(placement) == expected &&
          router_->last_load().router().placement().version() ==
              placement.version()) {
        return;
      }
      std::this_thread::yield();
    }
  }
  // Returns once the router has reported `rows` rows of expert 0.
  void WaitForRows(int64_t rows) {
    while (true) {
      const v1::DescribeResponse state = cluster_.Describe();
      for (const v1::Member& member : state.members()) {
        for (const v1::SessionLoad& load : member.heartbeat().session_loads()) {
          if (!load.expert_rows().empty() && load.expert_rows(0) >= rows) {
            return;
          }
        }
      }
      std::this_thread::yield();
    }
  }

  FakeCluster cluster_;
  FakeMember* router_ = nullptr;
};

TEST_F(HotExpertsTest, GetReplicasByTheRowsOfRoutersAndGiveThemUp) {
  ASSERT_NO_FATAL_FAILURE(Load());
  router_->SetRowsPerHeartbeat({1000, 10, 10});
  WaitFor({3, 1, 1});
  // Another expert becomes hot.
  router_->SetRowsPerHeartbeat({10, 10, 1000});
  WaitFor({1, 1, 3});
  // The traffic stops.
  router_->SetRowsPerHeartbeat({0, 0, 0});
  WaitFor({1, 1, 1});
}

TEST_F(HotExpertsTest, CountsOfOtherNumbersOfExpertsSayNothing) {
  ASSERT_NO_FATAL_FAILURE(Load());
  // Waits for heartbeats of several half-lives.
  router_->SetRowsPerHeartbeat({1000, 10, 10, 10});
  WaitForRows(8000);
  EXPECT_EQ(CountsOf(Placed()), (Counts{1, 1, 1}));
  router_->SetRowsPerHeartbeat({1000});
  WaitForRows(16000);
  EXPECT_EQ(CountsOf(Placed()), (Counts{1, 1, 1}));
  // Valid counts still take effect.
  router_->SetRowsPerHeartbeat({1000, 10, 10});
  WaitFor({3, 1, 1});
}

}  // namespace
}  // namespace gshard
