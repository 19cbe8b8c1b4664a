// Served models outlive their coordinator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/cluster/replica_placement.h"
#include "services/coordinator/serving/served_models.h"
#include "tests/services/coordinator/served_models_fixture.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class RestoredModelsTest : public ServedModelsTest {};

TEST_F(RestoredModelsTest, TheNextCoordinatorKnowsWhatWasServedBefore) {
  Start(1, 1, /*keep=*/true);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  ASSERT_OK(cluster_->LoadModel("m", "2", *directory_));
  cluster_->RestartCoordinator();
  EXPECT_EQ(WaitForReplicas(1).session(), "m@2");
  ASSERT_OK_AND_ASSIGN(const std::string session, Rollback("m"));
  EXPECT_EQ(session, "m@1");
}

TEST_F(RestoredModelsTest, TheNextCoordinatorFindsExpertsWhereTheyWere) {
  Start(3, 2, /*keep=*/true);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_, /*replicas=*/1));
  (void)WaitForReplicas(3);
  workers_[2]->Leave();
  (void)WaitForReplicas(2);
  cluster_->AddWorker("a");
  const v1::Placement before = WaitForReplicas(3).placement();
  // Moved experts are where a new placement would not put them.
  ASSERT_OK_AND_ASSIGN(
      const ExpertLists anew,
      PlaceReplicas({.num_experts = 3, .load = {}, .workers = {{}, {}, {}}}));
  ExpertLists moved;
  for (const auto& [worker, experts] : ExpertsOf(before)) {
    moved.emplace_back(experts.begin(), experts.end());
  }
  ASSERT_NE(moved, anew);
  const auto loads = [&] {
    std::set<std::string> sessions;
    const v1::SessionInfo session = Session();
    for (const v1::WorkerPlacement& bundle : session.placement().workers()) {
      sessions.insert(bundle.name() + " " + bundle.session());
    }
    return sessions;
  };
  const std::set<std::string> bundles = loads();
  cluster_->RestartCoordinator();
  const v1::SessionInfo after = WaitForReplicas(3);
  EXPECT_EQ(after.replicas(), 1);
  EXPECT_GT(after.placement().version(), before.version());
  EXPECT_EQ(ExpertsOf(after.placement()), ExpertsOf(before));
  EXPECT_EQ(loads(), bundles);
  // The router already had the model and was sent the load again.
  EXPECT_THAT(router_->commands(), Contains("load m@1").Times(2));
  EXPECT_THAT(router_->commands(), Not(Contains("unload m@1")));
}

// Models of the command line wait for more workers than those restored, which
// members serve in any case.
TEST_F(RestoredModelsTest, TheNextCoordinatorMaintainsWhatIsServedWithFewer) {
  cluster_ = std::make_unique<FakeCluster>(
      CoordinatorOptions{.lease = absl::Seconds(1), .min_workers = 2},
      /*keep=*/true);
  router_ = &cluster_->AddRouter("r");
  cluster_->AddWorker("w0");
  FakeMember& lost = cluster_->AddWorker("w1");
  WaitForMembers(3);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  cluster_->RestartCoordinator([&] { lost.Leave(); });
  EXPECT_EQ(WaitForReplicas(1).session(), "m@1");
}

// A version whose load has not ended is not taken for one that serves when it
// is loaded again; and one that has been replaced is forgotten.
TEST_F(RestoredModelsTest, ARestartKnowsWhereThatIsWhatServes) {
  std::promise<void> load, place;
  const std::shared_future<void> may_load = load.get_future().share();
  const std::shared_future<void> may_place = place.get_future().share();
  cluster_ = std::make_unique<FakeCluster>(CoordinatorOptions{}, /*keep=*/true);
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.load_session().session() == "m@2") may_load.wait();
        if (command.update_placement().session() == "m@3") may_place.wait();
        return std::nullopt;
      });
  cluster_->AddWorker("w0");
  WaitForMembers(2);
  // The router joins again once it is let go.
  const auto restart = [&](std::promise<void>* held) {
    std::vector<std::string> placed;
    cluster_->RestartCoordinator([&] {
      if (held != nullptr) held->set_value();
      ASSERT_OK_AND_ASSIGN(const auto store,
                           JobStore::Open(cluster_->scratch / "state"));
      ASSERT_OK_AND_ASSIGN(const auto placements, store->Placements());
      for (const auto& [session, placement] : placements) {
        placed.push_back(session);
      }
    });
    WaitForMembers(2);
    return placed;
  };
  // Without waiting, since a restart ends the call.
  const auto begin_load = [&](const std::string& version) {
    v1::LoadModelRequest request;
    request.set_name("m");
    request.set_version(version);
    request.set_checkpoint_directory(*directory_);
    cluster_->coordinator().LoadModel(request, {{"boss", AllGrants()}, ""},
                                      [](const auto&) {});
  };
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  begin_load("2");
  router_->WaitFor("load m@2");
  EXPECT_THAT(restart(&load), ElementsAre("m@1"));
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  begin_load("3");
  router_->WaitFor("place m@3");
  EXPECT_THAT(restart(&place), ElementsAre("m@1", "m@3"));
  ASSERT_OK(cluster_->LoadModel("m", "3", *directory_));
  EXPECT_THAT(restart(nullptr), ElementsAre("m@3"));
}

// While the next coordinator takes over, routers keep answering with the served
// version.
TEST_F(RestoredModelsTest, TheNextCoordinatorTakesNothingAway) {
  std::atomic<bool> broken = false;
  std::string had;  // the worker's session when it broke
  const auto refuse =
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
    if (!broken || !command.has_load_session() ||
        command.load_session().session() == had) {
      return std::nullopt;
    }
    return ReplyWith(absl::NotFoundError("no such folder"));
  };
  cluster_ = std::make_unique<FakeCluster>(
      CoordinatorOptions{.lease = absl::Seconds(1),
                         .watch_interval = absl::Milliseconds(1),
                         .serving_retry = absl::Milliseconds(20)},
      /*keep=*/true);
  router_ = &cluster_->AddRouter("r");
  FakeMember& other = cluster_->AddRouter("s", refuse);
  FakeMember& worker = cluster_->AddWorker("w0", refuse);
  FakeMember& lost = cluster_->AddWorker("w1");
  WaitForMembers(4);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  had = worker.last_load().session();
  broken = true;
  // The remaining worker cannot take over from the lost one.
  lost.Leave();
  (void)WaitFor([](const v1::SessionInfo& session) {
    return session.experts_unavailable() > 0;
  });
  cluster_->RestartCoordinator();
  const v1::SessionInfo session = WaitFor([](const v1::SessionInfo& session) {
    return session.state() == v1::SessionInfo::READY &&
           session.experts_unavailable() > 0;
  });
  EXPECT_THAT(session.routers(), ElementsAre("r"));
  // Once members can load again, everything is served again.
  broken = false;
  (void)WaitFor([](const v1::SessionInfo& session) {
    return session.experts_unavailable() == 0 && session.routers_size() == 2;
  });
  for (const FakeMember* member : {router_, &other, &worker}) {
    EXPECT_THAT(member->commands(), Not(Contains("abort m@1")));
    EXPECT_THAT(member->commands(), Not(Contains("unload m@1")));
  }
}
// Nothing is left by which it would count as served when it is loaded again.
TEST_F(RestoredModelsTest, AModelThatIsUnloadedWhileItWaitsIsForgotten) {
  const ScratchDirectory scratch;
  const std::string checkpoint = scratch / "checkpoint";
  const std::string moved = checkpoint + ".moved";
  std::filesystem::copy(*directory_, checkpoint,
                        std::filesystem::copy_options::recursive);
  std::atomic<bool> full = false;
  cluster_ = std::make_unique<FakeCluster>(
      CoordinatorOptions{.lease = absl::Seconds(1)}, /*keep=*/true);
  router_ = &cluster_->AddRouter("r");
  cluster_->AddWorker(
      "w0", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!full || !command.has_load_session()) return std::nullopt;
        return ReplyWith(absl::ResourceExhaustedError("no memory"));
      });
  WaitForMembers(2);
  ASSERT_OK(cluster_->LoadModel("m", "1", checkpoint));
  cluster_->RestartCoordinator(
      [&] { std::filesystem::rename(checkpoint, moved); });
  WaitForMembers(2);
  ASSERT_OK(cluster_->UnloadModel("m@1"));
  std::filesystem::rename(moved, checkpoint);
  full = true;
  EXPECT_THAT(
      cluster_->LoadModel("m", "1", checkpoint),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory")));
  cluster_ = nullptr;  // its worker uses what is here
}

}  // namespace
}  // namespace gshard
