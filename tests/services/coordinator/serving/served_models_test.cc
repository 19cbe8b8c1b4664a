// Served models follow their workers: replicas, losses and returns.

#include "services/coordinator/serving/served_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/task_queue.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/stream.h"
#include "tests/services/coordinator/served_models_fixture.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
  // Routers call the sessions that workers have loaded.
  for (const v1::WorkerPlacement& bundle : session.placement().workers()) {
    const int w = bundle.name()[1] - '0';
    EXPECT_EQ(bundle.session(), workers_[w]->last_load().session());
    EXPECT_GT(bundle.incarnation(), 0);
  }
}

TEST_F(ServedModelsTest, ARouterThatJoinsIsToldWhatItIsToServe) {
  Start(1, 1);
  EXPECT_THAT(router_->accepted().models(), IsEmpty());
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_THAT(cluster_->AddRouter("late").accepted().models(),
              ElementsAre("m"));
}

TEST_F(ServedModelsTest, AWorkerThatWantsToLeaveIsLetGoWithoutExperts) {
  Start(3, 1);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  WaitForReplicas(3);
  ASSERT_OK(workers_[1]->AwaitMayLeave());
  EXPECT_EQ(workers_[1]->commands().back(), "unload m@1");
  v1::SessionInfo session = Session();
  EXPECT_EQ(session.experts_unavailable(), 0);
  EXPECT_EQ(ExpertsOf(session.placement()).count("w1"), 0u);
  // A worker that may leave is still a member but gets no other model.
  ASSERT_OK(cluster_->LoadModel("n", "1", *directory_));
  EXPECT_EQ(workers_[1]->commands().back(), "unload m@1");
  ASSERT_OK(workers_[0]->AwaitMayLeave());
  session = Session();
  EXPECT_EQ(ExpertsOf(session.placement()).at("w2"),
            (std::set<int32_t>{0, 1, 2}));
  const v1::DescribeResponse state = cluster_->Describe();
  for (const v1::Member& member : state.members()) {
    EXPECT_EQ(member.may_leave(),
              member.name() == "w0" || member.name() == "w1")
        << member.name();
  }
  // If no worker stays, none waits, and the present placement keeps serving.
  ASSERT_OK(workers_[2]->AwaitMayLeave());
  EXPECT_EQ(Session().experts_unavailable(), 0);
  EXPECT_THAT(cluster_->LoadModel("o", "1", *directory_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("no expert worker has joined, or all are")));
}

TEST_F(ServedModelsTest, ARouterThatLeavesIsToldWhatItsCallsNeed) {
  Start(2, 1);
  FakeMember& leaves = cluster_->AddRouter("leaves");
  WaitForMembers(4);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  WaitForReplicas(2);
  leaves.SayLeaving();
  // It gets no other model.
  const auto is_leaving = [this] {
    const v1::DescribeResponse state = cluster_->Describe();
    return std::any_of(
        state.members().begin(), state.members().end(),
        [](const v1::Member& member) { return member.heartbeat().leaving(); });
  };
  while (!is_leaving()) std::this_thread::yield();
  ASSERT_OK(cluster_->LoadModel("n", "1", *directory_));
  EXPECT_THAT(leaves.commands(), ElementsAre("load m@1"));
  ASSERT_OK(workers_[1]->AwaitMayLeave());
  EXPECT_THAT(leaves.commands(), Contains("place m@1"));
  EXPECT_EQ(leaves.last_load().router().placement().version(),
            Session().placement().version());
  EXPECT_THAT(leaves.commands(), Not(Contains("load n@1")));
  // Without routers that stay nothing else can be served.
  router_->Leave();
  WaitForMembers(3);
  EXPECT_THAT(cluster_->LoadModel("o", "1", *directory_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("no router has joined, or all are leaving")));
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
    // The experts that it had were neither reloaded nor missing in between.
    EXPECT_TRUE(std::includes(after.at(worker).begin(), after.at(worker).end(),
                              before.at(worker).begin(),
                              before.at(worker).end()));
    EXPECT_EQ(after.at(worker).size(), 3u);
  }
  for (const FakeMember* worker : {workers_[0], workers_[2]}) {
    EXPECT_THAT(worker->commands(), ElementsAre("load m@1", "load m@1"));
  }

  // When the worker returns, the placement is as before, and the others release
  // what they took over.
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
  // The router loaded the model once and was then told new placements.
  const std::vector<std::string> commands = router_->commands();
  EXPECT_EQ(std::count(commands.begin(), commands.end(), "load m@1"), 1);
}

// Where its experts were is known, also to the next coordinator; and whoever
// comes back alone takes over after a lease.
TEST_F(ServedModelsTest, AModelThatLostAllWorkersIsNotForgotten) {
  Start(2, 1, /*keep=*/true);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  WaitForReplicas(2);
  const auto lose = [&](FakeMember* worker) {
    worker->Leave();
    (void)WaitFor([](const v1::SessionInfo& session) {
      return session.state() == v1::SessionInfo::BROKEN;
    });
  };
  workers_[0]->Leave();
  lose(workers_[1]);
  FakeMember& back = cluster_->AddWorker("w0");
  EXPECT_EQ(WaitForReplicas(1).experts_unavailable(), 0);
  lose(&back);
  cluster_->RestartCoordinator([&] {
    ASSERT_OK_AND_ASSIGN(const auto store,
                         JobStore::Open(cluster_->scratch / "state"));
    ASSERT_OK_AND_ASSIGN(const auto placements, store->Placements());
    ASSERT_TRUE(placements.contains("m@1"));
    EXPECT_THAT(ExpertsOf(placements.at("m@1")).at("w0"), ElementsAre(0, 1, 2));
  });
}

TEST_F(ServedModelsTest, PartsAreReleasedWhenNoRouterUsesThemAnyMore) {
  std::promise<void> told, go;
  std::shared_future<void> may_go = go.get_future();
  cluster_ = std::make_unique<FakeCluster>(CoordinatorOptions{.replicas = 1});
  std::atomic<bool> hold = false;
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        // The last update comes after the experts that the first worker keeps
        // have been loaded.
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
  // The router still calls the first worker for all experts.
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
  // The worker has room for its first expert only.
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
  // The other two workers leave one after the other; this one cannot take two
  // experts.
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

TEST_F(ServedModelsTest, AWorkerThatCannotNowIsAskedAgain) {
  cluster_ = std::make_unique<FakeCluster>(
      CoordinatorOptions{.serving_retry = absl::Milliseconds(1)});
  router_ = &cluster_->AddRouter("r");
  std::atomic<int> refusals = 2;
  std::atomic<bool> full = false;
  FakeMember& worker = cluster_->AddWorker(
      "w0", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!command.has_load_session()) return std::nullopt;
        if (--refusals >= 0) return ReplyWith(absl::UnavailableError("a disk"));
        if (full) return ReplyWith(absl::ResourceExhaustedError("no memory"));
        return std::nullopt;
      });
  FakeMember& other = cluster_->AddWorker("w1");
  WaitForMembers(3);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_THAT(worker.commands(),
              ElementsAre("load m@1", "load m@1", "load m@1"));
  (void)WaitForReplicas(2);
  full = true;
  other.Leave();
  (void)WaitFor([](const v1::SessionInfo& session) {
    return session.experts_unavailable() > 0;
  });
  // Members do not change any more, so only a retry can load the experts.
  full = false;
  EXPECT_EQ(WaitForReplicas(1).experts_unavailable(), 0);
}

// A worker that returns gets its experts back before its substitute has loaded
// them; the substitute then releases them.
TEST_F(ServedModelsTest, WhatIsNotNeededOnceItIsLoadedIsReleased) {
  cluster_ = std::make_unique<FakeCluster>();
  router_ = &cluster_->AddRouter("r");
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  std::atomic<bool> hold = false;
  FakeMember& worker = cluster_->AddWorker(
      "w0", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (command.has_load_session() && hold.exchange(false)) may_go.wait();
        return std::nullopt;
      });
  FakeMember& other = cluster_->AddWorker("w1");
  WaitForMembers(3);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  const auto before = ExpertsOf(WaitForReplicas(2).placement());
  hold = true;
  other.Leave();
  while (worker.commands().size() < 2) std::this_thread::yield();
  cluster_->AddWorker("w1");
  EXPECT_EQ(ExpertsOf(WaitForReplicas(2).placement()), before);
  go.set_value();
  worker.WaitFor("unload m@1");
  EXPECT_EQ(ExpertsOf(WaitForReplicas(2).placement()), before);
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
  // A load without a number of replicas leaves it unchanged.
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  EXPECT_EQ(Session().replicas(), 1);
}

// A router of another release is left out until it is replaced.
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

// A model that an earlier coordinator served is not given up for want of
// members, and they have been dismissed.
TEST_F(ServedModelsTest, ADrainAnswersWhoWaitsForARestoredModel) {
  std::promise<absl::Status> answer;
  std::atomic<bool> broken = false;
  cluster_ = std::make_unique<FakeCluster>(
      CoordinatorOptions{.lease = absl::Seconds(1)}, /*keep=*/true);
  router_ = &cluster_->AddRouter(
      "r", [&](const v1::Command& command) -> std::optional<v1::CommandReply> {
        if (!broken || !command.has_load_session()) return std::nullopt;
        return ReplyWith(absl::UnavailableError("not yet"));
      });
  cluster_->AddWorker("w0");
  WaitForMembers(2);
  ASSERT_OK(cluster_->LoadModel("m", "1", *directory_));
  broken = true;
  cluster_->RestartCoordinator();
  (void)WaitFor([](const v1::SessionInfo& session) {
    return session.session() == "m@1";
  });

  v1::LoadModelRequest request;
  request.set_name("m");
  request.set_version("1");
  request.set_checkpoint_directory(*directory_);
  cluster_->coordinator().LoadModel(
      request, {{"boss", AllGrants()}, ""},
      [&](const auto& response) { answer.set_value(response.status()); });
  cluster_->coordinator().Drain(absl::ZeroDuration());
  std::future<absl::Status> answered = answer.get_future();
  const bool is_answered =
      answered.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  cluster_ = nullptr;  // its router uses what is here
  ASSERT_TRUE(is_answered);
  EXPECT_THAT(answered.get(), StatusIs(absl::StatusCode::kUnavailable,
                                       HasSubstr("shutting down")));
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

// Records the commands for a member, which the test answers.
class CommandRecorder final : public StreamSender<v1::JoinResponse> {
 public:
  absl::Status Send(v1::JoinResponse message) override {
    if (message.has_command()) {
      commands.push_back(std::move(*message.mutable_command()));
    }
    return absl::OkStatus();
  }
  void Finish(const absl::Status&) override {}
  void Cancel() override {}

  std::vector<v1::Command> commands;
};

// A change of the members' sessions is looked at once for all replies that have
// arrived, not once for each: it takes time for each member and expert.
TEST(ServedModelsQueueTest, ManyRepliesAreOneChange) {
  constexpr int kWorkers = 16;
  TaskQueue queue;
  Members members({.lease = absl::Hours(24)});
  std::atomic<int> reconciled{0};
  ServedModels served(
      &members, &queue, [&] { return ++reconciled; },
      [](const auto&, const auto&) { return absl::OkStatus(); },
      [](const std::string&, const v1::Placement&) {}, {});
  const auto run = [&](std::function<void()> task) {
    std::promise<void> done;
    queue.Post([&] {
      if (task) task();
      done.set_value();
    });
    done.get_future().wait();
  };
  std::vector<std::pair<MemberKey, std::shared_ptr<CommandRecorder>>> joined;
  const auto join = [&](v1::MemberRole role, const std::string& name) {
    v1::RegisterMember request;
    request.set_role(role);
    request.set_name(name);
    request.set_address("unix:/tmp/" + name);
    request.set_protocol_version(1);
    auto recorder = std::make_shared<CommandRecorder>();
    const auto key = members.Register(request, recorder);
    CHECK(key.ok());
    joined.emplace_back(*key, std::move(recorder));
  };
  join(v1::MEMBER_ROLE_ROUTER, "r");
  for (int w = 0; w < kWorkers; ++w) {
    join(v1::MEMBER_ROLE_EXPERT_WORKER, absl::StrCat("w", w));
  }
  const ScratchDirectory scratch;
  ModelConfig model = MakeFakeJob("m", scratch).model;
  model.experts = kWorkers;
  run([&] {
    served.Load({.name = "m", .checkpoint = "/c", .version = "1"},
                {.directory = "/c", .canonical = "/c", .model = model},
                [](const auto&) {});
  });
  // All answer while the queue is busy, and members join.
  std::promise<void> go_on;
  auto may_go_on = go_on.get_future().share();
  queue.Post([may_go_on] { may_go_on.wait(); });
  const int before = reconciled;
  int replies = 0;
  for (const auto& [key, recorder] : joined) {
    for (const v1::Command& command : std::exchange(recorder->commands, {})) {
      v1::CommandReply reply;
      reply.set_command_id(command.command_id());
      reply.mutable_session_loaded();
      EXPECT_OK(members.OnCommandReply(key, reply));
      ++replies;
    }
    queue.Post([&] { served.OnMembersChanged(); });
  }
  EXPECT_GE(replies, kWorkers);
  go_on.set_value();
  run(nullptr);
  run(nullptr);  // behind what the replies have posted
  EXPECT_GT(reconciled, before);
  EXPECT_LE(reconciled, before + 2);
  EXPECT_EQ(served.Describe().size(), 1u);
  queue.Stop();
}

}  // namespace
}  // namespace gshard
