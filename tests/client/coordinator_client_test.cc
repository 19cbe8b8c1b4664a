#include "client/coordinator_client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/unix_server.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// LoadModel and SubmitJob run until their caller cancels; CancelJob needs any
// time; Describe is unavailable.
class SlowCoordinator final : public v1::CoordinatorService::Service {
 public:
  const std::string& address() const { return server_.address(); }
  void WaitForCall() { called_.get_future().wait(); }

  grpc::Status LoadModel(grpc::ServerContext* context,
                         const v1::LoadModelRequest*,
                         v1::LoadModelResponse*) override {
    called_.set_value();
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }

  grpc::Status SubmitJob(grpc::ServerContext* context,
                         const v1::SubmitJobRequest*,
                         v1::SubmitJobResponse*) override {
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse*) override {
    return {grpc::StatusCode::UNAVAILABLE, "the disk is away"};
  }

  grpc::Status CancelJob(grpc::ServerContext* context,
                         const v1::CancelJobRequest*,
                         v1::CancelJobResponse*) override {
    EXPECT_EQ(context->deadline(),
              std::chrono::system_clock::time_point::max());
    return grpc::Status::OK;
  }

 private:
  std::promise<void> called_;
  UnixServer server_{this, v1::CoordinatorService::service_full_name()};
};

TEST(CoordinatorClientTest, InterruptEndsWhatIsRunningAndWhatFollows) {
  SlowCoordinator coordinator;
  ASSERT_OK_AND_ASSIGN(const auto client,
                       CoordinatorClient::Create(coordinator.address()));
  const auto load = [&] {
    return client->LoadModel({}, std::chrono::hours(1)).status();
  };
  std::future<absl::Status> running = std::async(std::launch::async, load);
  coordinator.WaitForCall();
  client->Interrupt();
  EXPECT_THAT(running.get(), StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_THAT(load(), StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_THAT(client->WatchJob(
                  "job", false, [](const v1::JobProgress&) {},
                  [](auto, const absl::Status&) { ADD_FAILURE(); }),
              StatusIs(absl::StatusCode::kCancelled, _));
}

TEST(CoordinatorClientTest, ACancellationTakesAsLongAsMembersNeed) {
  SlowCoordinator coordinator;
  ASSERT_OK_AND_ASSIGN(const auto client,
                       CoordinatorClient::Create(coordinator.address()));
  EXPECT_OK(client->CancelJob("job"));
}

TEST(CoordinatorClientTest, SaysWhereToLookIfNobodyAnswers) {
  const auto error = [](const std::string& address) {
    return (*CoordinatorClient::Create(address))
        ->Describe(/*include_experts=*/false, std::chrono::minutes(1))
        .status();
  };
  EXPECT_THAT(error("unix:/absent/socket"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("does `gshard up` run?")));
  EXPECT_THAT(error("127.0.0.1:1"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("does it serve TLS (--tls_ca)?"),
                             Not(HasSubstr("gshard up")))));
}

TEST(CoordinatorClientTest, AnErrorOfTheCoordinatorIsNoMissingOne) {
  SlowCoordinator coordinator;
  ASSERT_OK_AND_ASSIGN(const auto client,
                       CoordinatorClient::Create(coordinator.address()));
  EXPECT_THAT(client->Describe(),
              StatusIs(absl::StatusCode::kUnavailable,
                       absl::StrCat("coordinator at ", coordinator.address(),
                                    ": the disk is away")));
}

// As a coordinator that shuts down refuses calls: before it looks at them.
TEST(CoordinatorClientTest, ARefusalNeedsNoHintAboutTheAddress) {
  class Refusing final : public v1::CoordinatorService::Service {
    grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                          v1::DescribeResponse*) override {
      return {grpc::StatusCode::UNAVAILABLE, "the server is shutting down"};
    }
  } service;
  int port = 0;
  const auto server =
      grpc::ServerBuilder()
          .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                            &port)
          .RegisterService(&service)
          .BuildAndStart();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  ASSERT_OK_AND_ASSIGN(const auto client, CoordinatorClient::Create(address));
  EXPECT_THAT(client->Describe(),
              StatusIs(absl::StatusCode::kUnavailable,
                       absl::StrCat("coordinator at ", address,
                                    ": the server is shutting down")));
}

TEST(CoordinatorClientTest, RoutersThatLeaveAreNoAddresses) {
  v1::DescribeResponse system;
  for (const char* name : {"r0", "r1", "w0"}) {
    v1::Member& member = *system.add_members();
    member.set_role(name[0] == 'r' ? v1::MEMBER_ROLE_ROUTER
                                   : v1::MEMBER_ROLE_EXPERT_WORKER);
    member.set_address(name);
  }
  ASSERT_OK_AND_ASSIGN(std::vector<std::string> addresses,
                       RouterAddresses(system));
  EXPECT_THAT(addresses, ElementsAre("r0", "r1"));
  system.mutable_members(0)->mutable_heartbeat()->set_leaving(true);
  ASSERT_OK_AND_ASSIGN(addresses, RouterAddresses(system));
  EXPECT_THAT(addresses, ElementsAre("r1"));
  system.mutable_members(1)->mutable_heartbeat()->set_leaving(true);
  EXPECT_THAT(
      RouterAddresses(system),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no router")));
}

TEST(CoordinatorClientTest, ALoadThatTakesLongGoesOn) {
  SlowCoordinator coordinator;
  ASSERT_OK_AND_ASSIGN(const auto client,
                       CoordinatorClient::Create(coordinator.address()));
  EXPECT_THAT(client->LoadModel({}, std::chrono::milliseconds(500)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("it goes on loading"),
                             Not(HasSubstr("gshard up")))));
}

TEST(CoordinatorClientTest, AJobThatTakesLongMayBeAcceptedYet) {
  SlowCoordinator coordinator;
  ASSERT_OK_AND_ASSIGN(const auto client,
                       CoordinatorClient::Create(coordinator.address()));
  v1::SubmitJobRequest request;
  EXPECT_THAT(
      client->SubmitJob(request, std::chrono::milliseconds(100)),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               HasSubstr("the job is not accepted after 100ms; it may be yet: "
                         "see `gshard jobs`")));
  request.set_validate_only(true);
  EXPECT_THAT(client->SubmitJob(request, std::chrono::milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       Not(HasSubstr("it may be yet"))));
}

}  // namespace
}  // namespace gshard
