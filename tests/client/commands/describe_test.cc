#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "client/commands.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "tests/client/command_run.h"
#include "tests/client/unix_server.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// A coordinator with one job and a served model that has lost a worker.
class FakeDescribeCoordinator final : public v1::CoordinatorService::Service {
 public:
  const std::string& address() const { return server_.address(); }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    v1::Member* const router = response->add_members();
    router->set_name("r");
    router->set_role(v1::MEMBER_ROLE_ROUTER);
    router->mutable_heartbeat()->set_leaving(true);
    v1::SessionInfo* const served = response->add_sessions();
    served->set_session("demo@12");
    served->set_state(v1::SessionInfo::READY);
    served->add_routers("r");
    served->mutable_placement()->set_version(7);
    served->mutable_placement()->add_workers()->set_name("w0");
    served->add_expert_counts(12);
    served->mutable_placement()->add_workers()->set_name("w1");
    served->add_expert_counts(3);
    served->mutable_placement()->add_workers()->set_name("w0");
    served->add_expert_counts(2);
    for (const int32_t id : {0, 1, 4}) {
      served->mutable_placement()->mutable_workers(1)->add_experts(id);
    }
    served->set_replicas(2);
    served->set_experts_unavailable(2);
    served->set_experts_below_replicas(16);
    v1::SessionInfo* const training = response->add_sessions();
    training->set_session("tiny/1");
    training->set_training(true);
    training->set_state(v1::SessionInfo::READY);
    training->mutable_placement()->set_version(3);
    training->add_routers("r");
    response->add_awaited_models("titles");
    v1::JobProgress* const queued = response->add_jobs();
    queued->set_job("late");
    queued->set_state(v1::JOB_STATE_QUEUED);
    queued->set_total_steps(20);
    queued->set_eta_seconds(-1);
    return grpc::Status::OK;
  }

 private:
  UnixServer server_{this, v1::CoordinatorService::service_full_name()};
};

TEST(DescribeCommandTest, SaysWhatServedModelsLack) {
  FakeDescribeCoordinator coordinator;
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.push_back("--coordinator=" + coordinator.address());
    return CommandRun(DescribeCommand, arguments);
  };
  const CommandRun text = run({});
  ASSERT_OK(text.status);
  EXPECT_THAT(
      text.out,
      HasSubstr(
          "session  purpose   state  replicas  below replicas  unavailable  "
          "sharing a domain  placement  held by  experts\n"
          "demo@12  serving   ready         2              16            2  "
          "               0  7          r        (dense part)\n"
          "                                                                 "
          "                             w0       14\n"
          "                                                                 "
          "                             w1       3: 0-1,4\n"
          "tiny/1   training  ready                                         "
          "                  3          r        (dense part)\n"
          "titles is to be served, but is not loading yet"));
  EXPECT_THAT(text.out, ContainsRegex("\nlate  queued  0/20\n"));
  EXPECT_THAT(text.out, ContainsRegex("\nr +router +leaving "));
  const CommandRun json = run({"--json"});
  ASSERT_OK(json.status);
  EXPECT_THAT(json.out, AllOf(HasSubstr("\"experts_unavailable\""),
                              HasSubstr("\"experts_below_replicas\"")));
}

// A coordinator of a system without members, or one that answers nobody.
class FakeWaitCoordinator final : public v1::CoordinatorService::Service {
 public:
  explicit FakeWaitCoordinator(grpc::Status answer)
      : answer_(std::move(answer)) {}

  const std::string& address() const { return server_.address(); }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse*) override {
    return answer_;
  }

 private:
  const grpc::Status answer_;
  UnixServer server_{this, v1::CoordinatorService::service_full_name()};
};

TEST(WaitCommandTest, ItsExitCodeSaysWhetherToWaitAgain) {
  const auto code = [](const grpc::Status& answer,
                       std::vector<std::string> arguments) {
    const FakeWaitCoordinator coordinator(answer);
    arguments.push_back("--coordinator=" + coordinator.address());
    return ExitCodeOf(CommandRun(WaitCommand, arguments).status);
  };
  EXPECT_EQ(code(grpc::Status::OK, {"--routers=0", "--workers=0"}), 0);
  EXPECT_EQ(code(grpc::Status::OK, {"--routers=1", "--timeout=150ms"}), 75);
  EXPECT_EQ(code(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no role"),
                 {"--timeout=10m"}),
            70);
  EXPECT_EQ(code(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no token"),
                 {"--timeout=10m"}),
            70);
  EXPECT_EQ(code(grpc::Status::OK, {"--routers=many"}), 2);
}

}  // namespace
}  // namespace gshard
