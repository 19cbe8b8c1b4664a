// Gauges show what served models lack as workers come and go.

#include "services/coordinator/serving/serving_gauges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

auto Shows(int unavailable, int below_replicas) {
  return AllOf(HasSubstr(absl::StrCat("\ngshard_served_experts_unavailable ",
                                      unavailable, "\n")),
               HasSubstr(absl::StrCat("\ngshard_served_experts_below_replicas ",
                                      below_replicas, "\n")));
}

v1::SessionInfo Lacking(v1::SessionInfo::State state, int unavailable,
                        int below_replicas) {
  v1::SessionInfo info;
  info.set_state(state);
  info.set_experts_unavailable(unavailable);
  info.set_experts_below_replicas(below_replicas);
  return info;
}

TEST(ServingGaugesTest, AddUpWhatModelsLackThatAreServed) {
  Metrics metrics("coordinator", "1");
  const ServingGauges gauges(metrics);
  EXPECT_THAT(metrics.Serialize(), Shows(0, 0));
  gauges.Set({Lacking(v1::SessionInfo::READY, 1, 4),
              Lacking(v1::SessionInfo::LOADING, 32, 64),
              Lacking(v1::SessionInfo::BROKEN, 8, 16)});
  EXPECT_THAT(metrics.Serialize(), Shows(9, 20));
  EXPECT_THAT(metrics.Serialize(), HasSubstr("\ngshard_served_models 2\n"));
  gauges.Set({});
  EXPECT_THAT(metrics.Serialize(), Shows(0, 0));
  v1::SessionInfo sharing;
  sharing.set_state(v1::SessionInfo::READY);
  sharing.set_experts_sharing_domain(3);
  gauges.Set({sharing, sharing});
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr("\ngshard_served_experts_sharing_domain 6\n"));
  ServingGauges().Set({Lacking(v1::SessionInfo::READY, 1, 4)});
}

TEST(ServingGaugesTest, SayWhichWorkersMayLeave) {
  Metrics metrics("coordinator", "1");
  ServingGauges gauges(metrics);
  const auto shows = [](const std::string& worker, int value) {
    return HasSubstr(absl::StrCat("\ngshard_worker_may_leave{worker=\"", worker,
                                  "\"} ", value, "\n"));
  };
  gauges.SetMayLeave({{"w0", true}, {"w1", false}});
  EXPECT_THAT(metrics.Serialize(), AllOf(shows("w0", 1), shows("w1", 0)));
  gauges.SetMayLeave({{"w1", true}});
  EXPECT_THAT(metrics.Serialize(),
              AllOf(Not(HasSubstr("\"w0\"")), shows("w1", 1)));
  gauges.SetMayLeave({{"w0", true}, {"w1", true}});
  EXPECT_THAT(metrics.Serialize(), AllOf(shows("w0", 1), shows("w1", 1)));
  ServingGauges().SetMayLeave({{"w0", true}});
}

TEST(ServingGaugesTest, RiseWhenAWorkerIsLostAndFallWhenItIsReplaced) {
  // Trains a checkpoint with 3 experts.
  FakeCluster trained;
  trained.AddRouter("r");
  trained.AddWorker("w");
  const TrainingJob job = trained.MakeJob();
  ASSERT_OK(trained.Submit(job));
  const std::string directory =
      trained.Watch(job.name).back().checkpoint_directory();

  Metrics metrics("coordinator", "1");
  std::atomic<int> loads = 0;
  std::promise<void> held, go;
  FakeCluster cluster(
      CoordinatorOptions{.serving_gauges = ServingGauges(metrics),
                         .replicas = 1,
                         .watch_interval = absl::Milliseconds(1)});
  const auto wait_for = [&](const auto& condition) {
    while (!condition(cluster.Describe())) std::this_thread::yield();
  };
  cluster.AddRouter("r");
  FakeMember& lost = cluster.AddWorker("w0");
  // Holds back the load of the lost worker's experts.
  cluster.AddWorker(
      "w1", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_load_session() && ++loads == 2) {
          held.set_value();
          go.get_future().wait();
        }
        return std::nullopt;
      });
  wait_for([](const auto& system) { return system.members_size() == 3; });
  ASSERT_OK(cluster.LoadModel("m", "1", directory));
  EXPECT_THAT(metrics.Serialize(), Shows(0, 0));
  const v1::SessionInfo before = cluster.Describe().sessions(0);
  int experts = 0;
  for (int i = 0; i < before.expert_counts_size(); ++i) {
    if (before.placement().workers(i).name() == "w0") {
      experts += before.expert_counts(i);
    }
  }
  ASSERT_GT(experts, 0);

  lost.Leave();
  held.get_future().wait();
  wait_for([](const auto& system) {
    return system.sessions(0).experts_unavailable() > 0;
  });
  EXPECT_THAT(metrics.Serialize(), Shows(experts, experts));
  go.set_value();
  wait_for([](const auto& system) {
    return system.sessions(0).experts_unavailable() == 0;
  });
  EXPECT_THAT(metrics.Serialize(), Shows(0, 0));
}

}  // namespace
}  // namespace gshard
