// Versions of a served model replace each other, also across coordinators.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/coordinator/serving/served_models.h"
#include "tests/services/coordinator/served_models_fixture.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ServedVersionsTest : public ServedModelsTest {
 protected:
  std::future<absl::StatusOr<std::string>> Load(const std::string& version) {
    return std::async(std::launch::async, [this, version] {
      return cluster_->LoadModel("m", version, *directory_);
    });
  }
  // Serves m@1 by a worker and a router, whose commands `intercept` sees first,
  // and begins to load m@2.
  std::future<absl::StatusOr<std::string>> Replace(
      FakeMember::Intercept intercept, bool keep = false) {
    cluster_ = std::make_unique<FakeCluster>(CoordinatorOptions{}, keep);
    router_ = &cluster_->AddRouter("r", std::move(intercept));
    cluster_->AddWorker("w0");
    WaitForMembers(2);
    EXPECT_OK(cluster_->LoadModel("m", "1", *directory_));
    return Load("2");
  }
};

TEST_F(ServedVersionsTest, AVersionIsReplacedAndCalledBack) {
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
  // A second rollback leads forward again.
  ASSERT_OK_AND_ASSIGN(session, Rollback("m"));
  EXPECT_EQ(session, "m@2");
}

TEST_F(ServedVersionsTest, AVersionAnswersOnceAllRoutersHaveIt) {
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
  // A router that cannot load the version leaves everything as it was.
  EXPECT_THAT(
      cluster_->LoadModel("m", "2", *directory_),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no room")));
  router_->WaitFor("unload m@2");
  EXPECT_THAT(router_->commands(),
              ElementsAre("load m@1", "load m@2", "unload m@2"));
  EXPECT_EQ(Session().session(), "m@1");

  ASSERT_OK(cluster_->LoadModel("m", "3", *directory_));
  for (const FakeMember* router : {router_, &other}) {
    EXPECT_EQ(router->last_load().session(), "m@3");
    EXPECT_FALSE(router->last_load().router().standby());
    router->WaitFor("unload m@1");
  }
  EXPECT_THAT(router_->commands(),
              ElementsAre("load m@1", "load m@2", "unload m@2", "load m@3",
                          "place m@3", "unload m@1"));
}

// The previous version is released only once every router has the new one.
TEST_F(ServedVersionsTest, ARouterThatJoinsWhileVersionsChangeGetsTheNewOne) {
  std::promise<void> placed, loaded;
  const std::shared_future<void> is_placed = placed.get_future().share();
  const std::shared_future<void> is_loaded = loaded.get_future().share();
  auto loading = Replace(
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.update_placement().session() == "m@2") is_placed.wait();
        return std::nullopt;
      });
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
  // The coordinator has handled that reply once it has answered a later call.
  while (router_->last_load().router().standby()) std::this_thread::yield();
  ASSERT_OK(cluster_->LoadModel("other", "1", *directory_));
  EXPECT_THAT(router_->commands(), Not(Contains("unload m@1")));
  loaded.set_value();
  ASSERT_OK(loading.get());
  late.WaitFor("unload m@1");
}

TEST_F(ServedVersionsTest, AVersionIsOfOneCheckpoint) {
  Start(1, 1);
  const ScratchDirectory scratch;
  const std::string other = scratch / "other";
  std::filesystem::copy(*directory_, other,
                        std::filesystem::copy_options::recursive);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_THAT(cluster_->LoadModel("m", "1", other),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("m@1"), HasSubstr(*directory_))));
  // Training that ends at the same step gives another version.
  ASSERT_OK(cluster_->LoadModel("m", "", *directory_));
  const std::string step = Session().session();
  ASSERT_OK(cluster_->LoadModel("m", "", other));
  EXPECT_EQ(Session().session(), step + "-2");
  EXPECT_EQ(Session().checkpoint_directory(), other);
}

TEST_F(ServedVersionsTest, OtherWeightsAreAnotherVersion) {
  Start(1, 1, /*keep=*/true);
  ASSERT_OK(cluster_->LoadModel("m", "", *directory_));
  const std::string own = Session().session();
  const auto load = [&](const std::string& version,
                        v1::ModelConfig::ComputeType weights) {
    return cluster_->LoadModel("m", version, *directory_, 0, weights);
  };
  // The type that the model is already served with.
  ASSERT_OK_AND_ASSIGN(std::string session, load("", v1::ModelConfig::FLOAT32));
  EXPECT_EQ(session, own);
  ASSERT_OK_AND_ASSIGN(session, load("", v1::ModelConfig::INT8));
  EXPECT_EQ(session, own + "-int8");
  EXPECT_EQ(Session().weights(), v1::ModelConfig::INT8);
  EXPECT_EQ(router_->last_load().router().model().compute_type(),
            v1::ModelConfig::INT8);
  EXPECT_THAT(load(own.substr(2) + "-int8", v1::ModelConfig::BFLOAT16),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("another version for other weights")));
  cluster_->RestartCoordinator();
  EXPECT_EQ(WaitForReplicas(1).session(), own + "-int8");
  EXPECT_EQ(Session().weights(), v1::ModelConfig::INT8);
  ASSERT_OK_AND_ASSIGN(session, Rollback("m"));
  EXPECT_EQ(session, own);
}

TEST_F(ServedVersionsTest, AVersionHasAsManyReplicasAsTheOneBefore) {
  Start(3, 1, /*keep=*/true);
  const auto replicas = [&](const std::string& session) {
    return WaitFor([&](const v1::SessionInfo& info) {
             return info.session() == session &&
                    info.state() == v1::SessionInfo::READY;
           })
        .replicas();
  };
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_EQ(replicas("m@1"), 1);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_, /*replicas=*/3));
  ASSERT_OK(cluster_->LoadModel("m", "2", *directory_));
  router_->WaitFor("unload m@1");
  EXPECT_EQ(replicas("m@2"), 3);
  cluster_->RestartCoordinator();
  EXPECT_EQ(replicas("m@2"), 3);
  WaitForMembers(4);
  ASSERT_OK(cluster_->LoadModel("m", "3", *directory_, /*replicas=*/2));
  EXPECT_EQ(replicas("m@3"), 2);
  // Another name has the coordinator's default.
  ASSERT_OK(cluster_->LoadModel("a", "1", *directory_));
  EXPECT_EQ(replicas("a@1"), 1);
}

// The next coordinator, which knows nothing of what is served, is told to serve
// another checkpoint of the same name and step.
TEST_F(ServedVersionsTest, ARouterGivesUpTheWeightsOfAnotherCheckpoint) {
  const ScratchDirectory scratch;
  const std::string other = scratch / "other";
  std::filesystem::copy(*directory_, other,
                        std::filesystem::copy_options::recursive);
  Start(1, 1);
  ASSERT_OK(cluster_->LoadModel("m", "", *directory_));
  const std::string session = Session().session();
  cluster_->RestartCoordinator();
  WaitForMembers(2);
  ASSERT_OK(cluster_->LoadModel("m", "", other));
  EXPECT_EQ(Session().session(), session);
  EXPECT_EQ(router_->last_load().router().checkpoint_directory(), other);
  EXPECT_THAT(router_->commands(),
              ElementsAre("load " + session, "load " + session,
                          "unload " + session, "load " + session));
}

// An unload that still waits for a router's calls does not release a version
// that is loaded again.
TEST_F(ServedVersionsTest, AVersionThatIsBackKeepsItsExperts) {
  std::promise<void> done;
  const std::shared_future<void> is_done = done.get_future().share();
  cluster_ = std::make_unique<FakeCluster>();
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.unload_session().session() == "m@1") is_done.wait();
        return std::nullopt;
      });
  FakeMember& worker = cluster_->AddWorker("w0");
  WaitForMembers(2);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  ASSERT_OK(cluster_->LoadModel("m", "2", *directory_));
  router_->WaitFor("unload m@1");
  auto loading = Load("1");
  // The coordinator finds the experts before it asks the router.
  (void)WaitFor([](const v1::SessionInfo& session) {
    return session.session() == "m@1" && !session.placement().workers().empty();
  });
  done.set_value();
  ASSERT_OK(loading.get());
  worker.WaitFor("unload m@2");
  EXPECT_THAT(worker.commands(),
              ElementsAre("load m@1", "load m@2", "unload m@2"));
  EXPECT_EQ(Session().session(), "m@1");
}

TEST_F(ServedVersionsTest, AVersionThatIsGivenUpLeavesTheOneThatServes) {
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  auto loading = Replace(
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.load_session().session() == "m@2") may_go.wait();
        return std::nullopt;
      },
      /*keep=*/true);
  router_->WaitFor("load m@2");
  ASSERT_OK(cluster_->UnloadModel("m@2"));
  EXPECT_THAT(loading.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("unloaded")));
  go.set_value();
  cluster_->RestartCoordinator();
  EXPECT_EQ(WaitForReplicas(1).session(), "m@1");
}

TEST_F(ServedVersionsTest, AVersionThatNeverAnsweredIsNotCalledBack) {
  auto loading = Replace(
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.load_session().session() != "m@2") return std::nullopt;
        return ReplyWith(absl::UnavailableError("not yet"));
      });
  router_->WaitFor("load m@2");
  ASSERT_OK(cluster_->LoadModel("m", "3", *directory_));
  EXPECT_THAT(loading.get(), StatusIs(absl::StatusCode::kCancelled,
                                      HasSubstr("another version")));
  ASSERT_OK_AND_ASSIGN(const std::string session, Rollback("m"));
  EXPECT_EQ(session, "m@1");
}

// The version that serves is asked for again while routers are switched to the
// next one.
TEST_F(ServedVersionsTest, AVersionThatIsAskedForAgainIsNotReplaced) {
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  auto loading = Replace(
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.update_placement().session() == "m@2") may_go.wait();
        return std::nullopt;
      },
      /*keep=*/true);
  router_->WaitFor("place m@2");
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_THAT(loading.get(), StatusIs(absl::StatusCode::kCancelled,
                                      HasSubstr("another version is loaded")));
  go.set_value();
  router_->WaitFor("unload m@2");
  cluster_->RestartCoordinator();
  EXPECT_EQ(WaitForReplicas(1).session(), "m@1");
}

// A version is stored before its name refers to it, and an unload before it
// happens: what fails has changed nothing, and can be repeated.
TEST_F(ServedVersionsTest, WhatCannotBeStoredDoesNotHappen) {
  Start(1, 1, /*keep=*/true);
  const std::string state = cluster_->scratch / "state";
  const auto fails =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is its disk there"));
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  std::filesystem::rename(state, state + "-away");
  EXPECT_THAT(cluster_->LoadModel("m", "2", *directory_), fails);
  router_->WaitFor("unload m@2");
  EXPECT_THAT(cluster_->LoadModel("m", "1", *directory_, /*replicas=*/2),
              fails);
  EXPECT_THAT(cluster_->UnloadModel("m@1"), fails);
  EXPECT_EQ(Session().session(), "m@1");
  EXPECT_EQ(Session().replicas(), 1);
  EXPECT_THAT(router_->commands(),
              ElementsAre("load m@1", "load m@2", "unload m@2"));
  std::filesystem::rename(state + "-away", state);
  ASSERT_OK(cluster_->LoadModel("m", "2", *directory_));
  ASSERT_OK(cluster_->UnloadModel("m@2"));
  cluster_->RestartCoordinator([&] {
    ASSERT_OK_AND_ASSIGN(const auto store, JobStore::Open(state));
    EXPECT_THAT(*store->Models(), IsEmpty());
  });
}

// Routers are being switched to a version when it is unloaded: the one before
// is what a restart restores.
TEST_F(ServedVersionsTest,
       AVersionThatIsUnloadedInTheSwitchLeavesTheOneBefore) {
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  auto loading = Replace(
      [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.update_placement().session() == "m@2") may_go.wait();
        return std::nullopt;
      },
      /*keep=*/true);
  router_->WaitFor("place m@2");
  ASSERT_OK(cluster_->UnloadModel("m@2"));
  EXPECT_THAT(loading.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("unloaded")));
  go.set_value();
  cluster_->RestartCoordinator([&] {
    ASSERT_OK_AND_ASSIGN(const auto store,
                         JobStore::Open(cluster_->scratch / "state"));
    ASSERT_OK_AND_ASSIGN(const auto models, store->Models());
    ASSERT_EQ(models.size(), 1u);
    EXPECT_EQ(models[0].request.version, "1");
  });
}

// Models to be served from the start are retried, except those that were
// unloaded meanwhile.
TEST_F(ServedVersionsTest, WhatWasUnloadedWhileItWasLoadedStaysAway) {
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  cluster_ = std::make_unique<FakeCluster>(
      CoordinatorOptions{.models = {{"m", *directory_}},
                         .min_workers = 1,
                         .serving_retry = absl::Milliseconds(1)});
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_load_session()) may_go.wait();
        return std::nullopt;
      });
  cluster_->AddWorker("w0");
  const std::string session = WaitFor([&](const v1::SessionInfo& session) {
                                return !session.session().empty();
                              }).session();
  router_->WaitFor("load " + session);
  ASSERT_OK(cluster_->UnloadModel(session));
  go.set_value();
  // This takes longer than a retry would.
  ASSERT_OK(cluster_->LoadModel("other", "1", *directory_));
  ASSERT_OK(cluster_->UnloadModel("other@1"));
  ASSERT_OK(cluster_->LoadModel("other", "2", *directory_));
  EXPECT_EQ(cluster_->Describe().sessions_size(), 1);
  EXPECT_EQ(Session().session(), "other@2");
}

TEST_F(ServedVersionsTest, WhatWaitsToBeServedIsUnloadedByItsName) {
  cluster_ = std::make_unique<FakeCluster>(
      CoordinatorOptions{.models = {{"m", *directory_}}});
  EXPECT_EQ(cluster_->Describe().awaited_models_size(), 1);
  ASSERT_OK(cluster_->UnloadModel("m"));
  EXPECT_EQ(cluster_->Describe().awaited_models_size(), 0);
  EXPECT_EQ(cluster_->UnloadModel("m").code(), absl::StatusCode::kNotFound);
}

TEST_F(ServedVersionsTest, AllModelsAreAwaitedWhileTheFirstIsLoaded) {
  constexpr int kModels = 128;
  CoordinatorOptions options;
  for (int i = 0; i < kModels; ++i) {
    options.models.push_back({absl::StrCat("m", i), *directory_});
  }
  std::atomic<bool> opened = false;
  std::promise<int> awaited;
  options.open_to_serve =
      [&](const std::string&) -> absl::StatusOr<ServableCheckpoint> {
    if (!opened.exchange(true)) {
      awaited.set_value(cluster_->coordinator()
                            .Describe({}, {"boss", AllGrants()})
                            .awaited_models_size());
    }
    return absl::UnavailableError("not yet");
  };
  cluster_ = std::make_unique<FakeCluster>(options);
  cluster_->AddRouter("r");
  cluster_->AddWorker("w0");
  EXPECT_EQ(awaited.get_future().get(), kModels);
  cluster_ = nullptr;  // its coordinator uses what is here
}

// What could not be served from the start is not tried again while a caller
// loads another version, which it would replace.
TEST_F(ServedVersionsTest, ARetryDoesNotOvertakeACaller) {
  const ScratchDirectory scratch;
  const std::string later = scratch / "later";
  std::filesystem::copy(*directory_, scratch / "copy",
                        std::filesystem::copy_options::recursive);
  std::atomic<bool> ready = false;
  cluster_ = std::make_unique<FakeCluster>(CoordinatorOptions{
      .models = {{"m", later}}, .serving_retry = absl::Milliseconds(1)});
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (ready || command.load_session().session() != "m@1") {
          return std::nullopt;
        }
        return ReplyWith(absl::UnavailableError("not yet"));
      });
  cluster_->AddWorker("w0");
  WaitForMembers(2);
  auto loading = Load("1");
  router_->WaitFor("load m@1");
  std::filesystem::rename(scratch / "copy", later);
  // This takes longer than a retry would.
  ASSERT_OK(cluster_->LoadModel("other", "1", *directory_));
  ASSERT_OK(cluster_->UnloadModel("other@1"));
  ready = true;
  ASSERT_OK(loading.get());
  EXPECT_EQ(Session().session(), "m@1");
  EXPECT_THAT(router_->commands(), Not(Contains("load m@3")));
  cluster_ = nullptr;  // its router uses what is here
}

TEST_F(ServedVersionsTest, WhatNobodyNeedsAnyMoreIsReleased) {
  Start(2, 1);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  // The next coordinator knows no models.
  cluster_->RestartCoordinator();
  router_->WaitFor("unload m@1");
  for (const FakeMember* worker : workers_) worker->WaitFor("unload m@1");
}

}  // namespace
}  // namespace gshard
