#include "client/system_wait.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "absl/strings/str_cat.h"
#include "tests/client/scratch_folder.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_names.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

void AddMember(v1::DescribeResponse* system, v1::MemberRole role) {
  system->add_members()->set_role(role);
}

TEST(SystemWaitTest, CountsMembersByRole) {
  v1::DescribeResponse system;
  AddMember(&system, v1::MEMBER_ROLE_ROUTER);
  AddMember(&system, v1::MEMBER_ROLE_EXPERT_WORKER);
  AddMember(&system, v1::MEMBER_ROLE_EXPERT_WORKER);
  EXPECT_EQ(Missing(system, {.routers = 1, .workers = 2}), "");
  EXPECT_EQ(Missing(system, {.routers = 2, .workers = 3}),
            "1 of 2 routers are there, 2 of 3 expert workers are there");
}

TEST(SystemWaitTest, ARouterThatLeavesDoesNotCount) {
  v1::DescribeResponse system;
  AddMember(&system, v1::MEMBER_ROLE_ROUTER);
  AddMember(&system, v1::MEMBER_ROLE_ROUTER);
  system.mutable_members(0)->mutable_heartbeat()->set_leaving(true);
  EXPECT_EQ(Missing(system, {.routers = 1, .workers = 0}), "");
  EXPECT_EQ(Missing(system, {.routers = 2, .workers = 0}),
            "1 of 2 routers are there");
}

TEST(SystemWaitTest, AModelIsThereWhenItsServingSessionIsReady) {
  v1::DescribeResponse system;
  const SystemGoal goal{.routers = 0, .workers = 0, .model = "demo"};
  v1::SessionInfo* session = system.add_sessions();
  session->set_state(v1::SessionInfo::READY);
  session->set_session("demo/1");
  session->set_training(true);
  EXPECT_EQ(Missing(system, goal), "model demo is not ready");
  session->set_training(false);
  session->set_session("demo2@7");
  EXPECT_EQ(Missing(system, goal), "model demo is not ready");
  session->set_session("demo@7");
  EXPECT_EQ(Missing(system, goal), "");
  session->set_state(v1::SessionInfo::LOADING);
  EXPECT_EQ(Missing(system, goal), "model demo is not ready");
}

TEST(SystemWaitTest, AVersionOfAModelMayBeNamed) {
  v1::DescribeResponse system;
  v1::SessionInfo* session = system.add_sessions();
  session->set_state(v1::SessionInfo::READY);
  session->set_session("demo@7");
  SystemGoal goal{.routers = 0, .workers = 0, .model = "demo@7"};
  EXPECT_EQ(Missing(system, goal), "");
  goal.model = "demo@8";
  EXPECT_EQ(Missing(system, goal), "model demo@8 is not ready");
}

TEST(SystemWaitTest, AFullSystemHasAllReplicas) {
  v1::DescribeResponse system;
  v1::SessionInfo* session = system.add_sessions();
  session->set_session("demo@7");
  session->set_experts_below_replicas(3);
  SystemGoal goal{.routers = 0, .workers = 0};
  EXPECT_EQ(Missing(system, goal), "");
  goal.full = true;
  EXPECT_EQ(Missing(system, goal),
            "3 experts of demo@7 are below their replicas");
  session->clear_experts_below_replicas();
  EXPECT_EQ(Missing(system, goal), "");
  system.add_awaited_models("next");
  EXPECT_EQ(Missing(system, goal), "model next is not loading yet");
  goal.model = "next";
  EXPECT_EQ(Missing(system, goal), "model next is not ready");
  goal = {.routers = 0, .workers = 0};
  EXPECT_EQ(Missing(system, goal), "");
}

TEST(SystemWaitTest, SaysWhyItGaveUp) {
  const ScratchFolder folder;
  ASSERT_OK_AND_ASSIGN(
      const auto nobody,
      CoordinatorClient::Create("unix:" + folder.path() + "/c.sock"));
  EXPECT_THAT(WaitForSystem(*nobody, {}, std::chrono::milliseconds(150),
                            [] { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("does `gshard up` run?")));
  EXPECT_THAT(WaitForSystem(*nobody, {}, std::chrono::minutes(10),
                            [] { return absl::AbortedError("router-0 died"); }),
              StatusIs(absl::StatusCode::kAborted, "router-0 died"));
}

// As that of a pod that is still to be started, or is moved.
TEST(SystemWaitTest, ANameThatHasNoAddressYetIsAskedForAgainSoon) {
  class Lonely final : public v1::CoordinatorService::Service {
    grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                          v1::DescribeResponse*) override {
      return grpc::Status::OK;
    }
  } service;
  int port = 0;
  const auto server =
      grpc::ServerBuilder()
          .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                            &port)
          .RegisterService(&service)
          .BuildAndStart();
  TestNames& names = TestNames::Get();
  names.LeadTo("");
  ASSERT_OK_AND_ASSIGN(
      const auto coordinator,
      CoordinatorClient::Create(absl::StrCat("coordinator.test:", port)));
  std::future<absl::Status> wait = std::async(std::launch::async, [&] {
    return WaitForSystem(*coordinator, {.routers = 0, .workers = 0},
                         std::chrono::minutes(10),
                         [] { return absl::OkStatus(); });
  });
  const auto asked = names.Asked(5);
  EXPECT_LT(asked[4] - asked[3], std::chrono::seconds(3));
  names.LeadTo("127.0.0.1");
  EXPECT_OK(wait.get());
}

}  // namespace
}  // namespace gshard
