// Served models follow their workers: replicas, losses, returns and versions.

#include "services/coordinator/served_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "services/cluster/replica_placement.h"
#include "services/rpc/status.h"
#include "tests/services/checkpoint/scratch_directory.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ServedModelsTest : public ::testing::Test {
 protected:
  // A checkpoint for all tests, with 3 experts.
  static void SetUpTestSuite() {
    trained_ = new FakeCluster();
    trained_->AddRouter("r");
    trained_->AddWorker("w");
    const TrainingJob job = trained_->MakeJob();
    CHECK(trained_->Submit(job).ok());
    directory_ = new std::string(
        trained_->Watch(job.name).back().checkpoint_directory());
  }
  static void TearDownTestSuite() {
    delete trained_;
    delete directory_;
  }

  // A router "r" and workers "w0", "w1", ... `keep`: see FakeCluster.
  void Start(int workers, int replicas, bool keep = false) {
    cluster_ = std::make_unique<FakeCluster>(
        CoordinatorOptions{.lease = absl::Seconds(1),
                           .replicas = replicas,
                           .watch_interval = absl::Milliseconds(1)},
        keep);
    router_ = &cluster_->AddRouter("r");
    for (int w = 0; w < workers; ++w) {
      workers_.push_back(&cluster_->AddWorker(absl::StrCat("w", w)));
    }
    WaitForMembers(workers + 1);
  }
  void WaitForMembers(int count) {
    while (cluster_->Describe().members_size() != count) {
      std::this_thread::yield();
    }
  }

  v1::SessionInfo Session() {
    const v1::DescribeResponse state =
        cluster_->Describe(/*include_experts=*/true);
    return state.sessions_size() == 0 ? v1::SessionInfo() : state.sessions(0);
  }
  absl::StatusOr<std::string> Rollback(const std::string& name) {
    v1::LoadModelRequest request;
    request.set_name(name);
    request.set_rollback(true);
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    const absl::Status status = FromGrpcStatus(
        cluster_->stub().LoadModel(&context, request, &response));
    if (!status.ok()) return status;
    return response.session();
  }
  // The experts of each worker, by its name.
  static std::map<std::string, std::set<int32_t>> ExpertsOf(
      const v1::Placement& placement) {
    std::map<std::string, std::set<int32_t>> experts;
    for (const v1::WorkerPlacement& worker : placement.workers()) {
      for (const int32_t expert : worker.experts()) {
        // Once by one worker.
        EXPECT_TRUE(experts[worker.name()].insert(expert).second);
      }
    }
    return experts;
  }
  template <typename Condition>
  v1::SessionInfo WaitFor(Condition condition) {
    while (true) {
      v1::SessionInfo session = Session();
      if (condition(session)) return session;
      std::this_thread::yield();
    }
  }
  // The model is ready, and the router knows what the coordinator says.
  v1::SessionInfo WaitForReplicas(size_t workers) {
    return WaitFor([&](const v1::SessionInfo& session) {
      return session.state() == v1::SessionInfo::READY &&
             session.experts_below_replicas() == 0 &&
             ExpertsOf(session.placement()).size() == workers &&
             router_->last_load().router().placement().version() ==
                 session.placement().version();
    });
  }

  static FakeCluster* trained_;
  static std::string* directory_;
  std::unique_ptr<FakeCluster> cluster_;
  FakeMember* router_ = nullptr;
  std::vector<FakeMember*> workers_;
};

FakeCluster* ServedModelsTest::trained_ = nullptr;
std::string* ServedModelsTest::directory_ = nullptr;

TEST_F(ServedModelsTest, EachExpertIsOnAsManyWorkersAsAskedFor) {
  Start(3, 2);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  v1::SessionInfo session = WaitForReplicas(3);
  EXPECT_EQ(session.replicas(), 2);
  EXPECT_EQ(session.experts_unavailable(), 0);
  std::map<int32_t, int> counts;
  for (const auto& [worker, experts] : ExpertsOf(session.placement())) {
    for (const int32_t expert : experts) ++counts[expert];
  }
  EXPECT_EQ(counts, (std::map<int32_t, int>{{0, 2}, {1, 2}, {2, 2}}));
  // What routers call is what the workers have loaded.
  for (const v1::WorkerPlacement& part : session.placement().workers()) {
    const int w = part.name()[1] - '0';
    EXPECT_EQ(part.session(), workers_[w]->last_load().session());
    EXPECT_GT(part.incarnation(), 0);
  }
}

TEST_F(ServedModelsTest, ALostWorkerIsReplacedWhileTheSessionServes) {
  Start(3, 2);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  const auto before = ExpertsOf(WaitForReplicas(3).placement());
  std::set<v1::SessionInfo::State> states;
  workers_[1]->Leave();
  while (true) {
    const v1::SessionInfo session = Session();
    states.insert(session.state());
    EXPECT_EQ(session.experts_unavailable(), 0);
    if (session.experts_below_replicas() == 0 &&
        ExpertsOf(session.placement()).size() == 2) {
      break;
    }
    std::this_thread::yield();
  }
  EXPECT_THAT(states, ElementsAre(v1::SessionInfo::READY));
  const auto after = ExpertsOf(WaitForReplicas(2).placement());
  for (const char* worker : {"w0", "w2"}) {
    // Nothing that it had was loaded again, or was gone for a time.
    EXPECT_TRUE(std::includes(after.at(worker).begin(), after.at(worker).end(),
                              before.at(worker).begin(),
                              before.at(worker).end()));
    EXPECT_EQ(after.at(worker).size(), 3u);
  }
  for (const FakeMember* worker : {workers_[0], workers_[2]}) {
    EXPECT_THAT(worker->commands(), ElementsAre("load m@1", "load m@1"));
  }

  // It is back: as before, and the others let go of what they had taken over.
  cluster_->AddWorker("w1");
  EXPECT_EQ(ExpertsOf(WaitForReplicas(3).placement()), before);
  workers_[0]->WaitFor("unload m@1");
  workers_[2]->WaitFor("unload m@1");
}

TEST_F(ServedModelsTest, WithoutReplicasExpertsAreMissingUntilTheyAreLoaded) {
  Start(2, 1);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  const auto before = ExpertsOf(WaitForReplicas(2).placement());
  workers_[0]->Leave();
  const auto during = ExpertsOf(WaitForReplicas(1).placement());
  EXPECT_THAT(during.at("w1"), ElementsAre(0, 1, 2));
  EXPECT_EQ(Session().state(), v1::SessionInfo::READY);
  cluster_->AddWorker("w0");
  EXPECT_EQ(ExpertsOf(WaitForReplicas(2).placement()), before);
  // The router never loaded it again: it was told where experts are.
  const std::vector<std::string> commands = router_->commands();
  EXPECT_EQ(std::count(commands.begin(), commands.end(), "load m@1"), 1);
}

TEST_F(ServedModelsTest, PartsAreReleasedWhenNoRouterUsesThemAnyMore) {
  std::promise<void> told, go;
  std::shared_future<void> may_go = go.get_future();
  cluster_ = std::make_unique<FakeCluster>(CoordinatorOptions{.replicas = 1});
  std::atomic<bool> hold = false;
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        // The last one: what the first worker keeps has been loaded, too.
        int32_t placed = 0;
        for (const v1::WorkerPlacement& worker :
             command.update_placement().placement().workers()) {
          placed += worker.experts_size();
        }
        if (placed == 3 && hold.exchange(false)) {
          told.set_value();
          may_go.wait();
        }
        return std::nullopt;
      });
  workers_.push_back(&cluster_->AddWorker("w0"));
  WaitForMembers(2);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  hold = true;
  FakeMember& other = cluster_->AddWorker("w1");
  other.WaitFor("load m@1");
  told.get_future().wait();
  // The router still calls the first worker for everything.
  const v1::SessionInfo session = WaitFor([](const v1::SessionInfo& session) {
    return ExpertsOf(session.placement()).size() == 2;
  });
  EXPECT_THAT(workers_[0]->commands(), ElementsAre("load m@1", "load m@1"));
  go.set_value();
  workers_[0]->WaitFor("unload m@1");
}

TEST_F(ServedModelsTest, AWorkerLostWhileLoadingIsDoneWithout) {
  cluster_ = std::make_unique<FakeCluster>();
  router_ = &cluster_->AddRouter("r");
  cluster_->AddWorker("w0");
  std::promise<void> loading;
  std::atomic<bool> began = false;
  FakeMember* lost = nullptr;
  std::thread leave;
  lost = &cluster_->AddWorker(
      "w1", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session()) return std::nullopt;
        if (!began.exchange(true)) loading.set_value();
        return ReplyWith(absl::UnavailableError("going"));
      });
  WaitForMembers(3);
  leave = std::thread([&] {
    loading.get_future().wait();
    lost->Leave();
  });
  EXPECT_OK(cluster_->LoadModel("m", "1", *directory_));
  leave.join();
  EXPECT_THAT(ExpertsOf(WaitForReplicas(1).placement()).at("w0"),
              ElementsAre(0, 1, 2));
}

TEST_F(ServedModelsTest, AWorkerWithoutRoomKeepsWhatItHas) {
  Start(2, 1);
  // Has room for its first expert only.
  std::atomic<bool> full = false;
  cluster_->AddWorker(
      "x", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session()) return std::nullopt;
        if (command.load_session().worker().experts_size() == 1 &&
            !full.exchange(true)) {
          return std::nullopt;
        }
        return ReplyWith(absl::ResourceExhaustedError("no memory"));
      });
  WaitForMembers(4);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  (void)WaitForReplicas(3);
  // Its two neighbours go one after the other; it cannot take two experts.
  workers_[0]->Leave();
  const auto experts = ExpertsOf(WaitForReplicas(2).placement());
  EXPECT_EQ(experts.at("x").size() + experts.at("w1").size(), 3u);
  workers_[1]->Leave();
  const v1::SessionInfo session = WaitFor([](const v1::SessionInfo& session) {
    return session.experts_unavailable() > 0 &&
           ExpertsOf(session.placement()).size() == 1;
  });
  EXPECT_EQ(session.state(), v1::SessionInfo::READY);
}

TEST_F(ServedModelsTest, ARouterThatCannotReachAWorkerIsToldAgain) {
  cluster_ = std::make_unique<FakeCluster>();
  std::atomic<int> refusals = 2;
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session() || --refusals < 0) return std::nullopt;
        return ReplyWith(absl::UnavailableError("worker 'w0' is not reached"));
      });
  cluster_->AddWorker("w0");
  WaitForMembers(2);
  EXPECT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_EQ(router_->commands().size(), 3u);
}

TEST_F(ServedModelsTest, AVersionIsReplacedAndCalledBack) {
  Start(1, 1);
  EXPECT_THAT(Rollback("m"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no model 'm'")));
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_THAT(Rollback("m"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("before m@1")));
  ASSERT_OK(cluster_->LoadModel("m", "2", *directory_));
  ASSERT_OK_AND_ASSIGN(std::string session, Rollback("m"));
  EXPECT_EQ(session, "m@1");
  router_->WaitFor("unload m@2");
  EXPECT_EQ(Session().session(), "m@1");
  // And forward again.
  ASSERT_OK_AND_ASSIGN(session, Rollback("m"));
  EXPECT_EQ(session, "m@2");
}

TEST_F(ServedModelsTest, AVersionAnswersOnceAllRoutersHaveIt) {
  cluster_ = std::make_unique<FakeCluster>();
  router_ = &cluster_->AddRouter("r");
  FakeMember& other = cluster_->AddRouter(
      "s", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        const std::string& session = command.load_session().session();
        if (session != "m@2" && session != "m@3") return std::nullopt;
        while (router_->last_load().session() != session) {
          std::this_thread::yield();
        }
        EXPECT_TRUE(router_->last_load().router().standby());
        if (session == "m@3") return std::nullopt;
        return ReplyWith(absl::FailedPreconditionError("no room"));
      });
  cluster_->AddWorker("w0");
  WaitForMembers(3);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_FALSE(router_->last_load().router().standby());
  // A router that cannot load it leaves all as it was.
  EXPECT_THAT(
      cluster_->LoadModel("m", "2", *directory_),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no room")));
  router_->WaitFor("abort m@2");
  EXPECT_THAT(router_->commands(),
              ElementsAre("load m@1", "load m@2", "abort m@2"));
  EXPECT_EQ(Session().session(), "m@1");

  ASSERT_OK(cluster_->LoadModel("m", "3", *directory_));
  for (const FakeMember* router : {router_, &other}) {
    EXPECT_EQ(router->last_load().session(), "m@3");
    EXPECT_FALSE(router->last_load().router().standby());
    router->WaitFor("unload m@1");
  }
  EXPECT_THAT(router_->commands(),
              ElementsAre("load m@1", "load m@2", "abort m@2", "load m@3",
                          "place m@3", "unload m@1"));
}

// The version before is released when no router is without the new one.
TEST_F(ServedModelsTest, ARouterThatJoinsWhileVersionsChangeGetsTheNewOne) {
  std::promise<void> placed, loaded;
  const std::shared_future<void> is_placed = placed.get_future().share();
  const std::shared_future<void> is_loaded = loaded.get_future().share();
  cluster_ = std::make_unique<FakeCluster>();
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.update_placement().session() == "m@2") is_placed.wait();
        return std::nullopt;
      });
  cluster_->AddWorker("w0");
  WaitForMembers(2);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  std::future<absl::StatusOr<std::string>> loading =
      std::async(std::launch::async,
                 [&] { return cluster_->LoadModel("m", "2", *directory_); });
  router_->WaitFor("place m@2");
  FakeMember& late = cluster_->AddRouter(
      "late",
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.load_session().session() != "m@2") return std::nullopt;
        EXPECT_FALSE(command.load_session().router().standby());
        is_loaded.wait();
        return std::nullopt;
      });
  late.WaitFor("load m@2");
  placed.set_value();
  // The coordinator knows of the reply once it has answered a later one.
  while (router_->last_load().router().standby()) std::this_thread::yield();
  ASSERT_OK(cluster_->LoadModel("other", "1", *directory_));
  EXPECT_THAT(router_->commands(), Not(Contains("unload m@1")));
  loaded.set_value();
  ASSERT_OK(loading.get());
  late.WaitFor("unload m@1");
}

TEST_F(ServedModelsTest, AModelThatServesCanHaveMoreReplicas) {
  Start(3, 1);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  const auto count = [](const v1::SessionInfo& session) {
    size_t experts = 0;
    for (const auto& [worker, held] : ExpertsOf(session.placement())) {
      experts += held.size();
    }
    return experts;
  };
  const size_t once = count(WaitForReplicas(3));
  for (const int32_t replicas : {2, 1}) {
    ASSERT_OK(cluster_->LoadModel("m", "1", *directory_, replicas));
    const v1::SessionInfo session = WaitFor([&](const auto& now) {
      return now.experts_below_replicas() == 0 && count(now) == once * replicas;
    });
    EXPECT_EQ(session.replicas(), replicas);
  }
  // Whoever does not say leaves it as it is.
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_EQ(Session().replicas(), 1);
}

TEST_F(ServedModelsTest, AVersionIsOfOneCheckpoint) {
  Start(1, 1);
  const ScratchDirectory scratch;
  const std::string other = scratch / "other";
  std::filesystem::copy(*directory_, other,
                        std::filesystem::copy_options::recursive);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_THAT(cluster_->LoadModel("m", "1", other),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("m@1"), HasSubstr(*directory_))));
  // A training that ends at the same step is another version.
  ASSERT_OK(cluster_->LoadModel("m", "", *directory_));
  const std::string step = Session().session();
  ASSERT_OK(cluster_->LoadModel("m", "", other));
  EXPECT_EQ(Session().session(), step + "-2");
  EXPECT_EQ(Session().checkpoint_directory(), other);
}

// It is there until it is replaced.
TEST_F(ServedModelsTest, ARouterOfAnotherReleaseIsLeftOut) {
  cluster_ = std::make_unique<FakeCluster>();
  router_ = &cluster_->AddRouter("r");
  cluster_->AddRouter(
      "old",
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session()) return std::nullopt;
        return ReplyWith(absl::UnimplementedError("other segments"));
      });
  cluster_->AddWorker("w0");
  WaitForMembers(3);
  EXPECT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_THAT(Session().routers(), ElementsAre("r"));
}

TEST_F(ServedModelsTest, TheNextCoordinatorKnowsWhatWasServedBefore) {
  Start(1, 1, /*keep=*/true);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  ASSERT_OK(cluster_->LoadModel("m", "2", *directory_));
  cluster_->RestartCoordinator();
  EXPECT_EQ(WaitForReplicas(1).session(), "m@2");
  ASSERT_OK_AND_ASSIGN(const std::string session, Rollback("m"));
  EXPECT_EQ(session, "m@1");
}

TEST_F(ServedModelsTest, TheNextCoordinatorFindsExpertsWhereTheyWere) {
  Start(3, 2, /*keep=*/true);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_, /*replicas=*/1));
  (void)WaitForReplicas(3);
  workers_[2]->Leave();
  (void)WaitForReplicas(2);
  cluster_->AddWorker("a");
  const v1::Placement before = WaitForReplicas(3).placement();
  // What has moved lies where nobody would place it anew.
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
    for (const v1::WorkerPlacement& part : session.placement().workers()) {
      sessions.insert(part.name() + " " + part.session());
    }
    return sessions;
  };
  const std::set<std::string> parts = loads();
  cluster_->RestartCoordinator();
  const v1::SessionInfo after = WaitForReplicas(3);
  EXPECT_EQ(after.replicas(), 1);
  EXPECT_GT(after.placement().version(), before.version());
  EXPECT_EQ(ExpertsOf(after.placement()), ExpertsOf(before));
  EXPECT_EQ(loads(), parts);
  // It had the model, and was told so.
  EXPECT_THAT(router_->commands(), Contains("load m@1").Times(2));
  EXPECT_THAT(router_->commands(), Not(Contains("unload m@1")));
}

TEST_F(ServedModelsTest, WhatNobodyNeedsAnyMoreIsReleased) {
  Start(2, 1);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  // Its successor knows nothing of models.
  cluster_->RestartCoordinator();
  router_->WaitFor("unload m@1");
  for (const FakeMember* worker : workers_) worker->WaitFor("unload m@1");
}

TEST_F(ServedModelsTest, RefusesWhatMakesNoSense) {
  Start(1, 1);
  const auto load = [&](v1::LoadModelRequest request) {
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    return FromGrpcStatus(
        cluster_->stub().LoadModel(&context, request, &response));
  };
  v1::LoadModelRequest request;
  request.set_name("m");
  request.set_checkpoint_directory(*directory_);
  request.set_replicas(17);
  EXPECT_THAT(load(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("1 to 16, or 0")));
  request.set_replicas(0);
  request.set_rollback(true);
  EXPECT_THAT(load(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("rollback")));
}

}  // namespace
}  // namespace gshard
