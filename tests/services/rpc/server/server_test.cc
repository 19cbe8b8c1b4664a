#include "services/rpc/server/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "proto/gshard/v1/status.pb.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr milliseconds kLong{60'000};

// Answers with the request's model; "wait" blocks until Release() or until the
// call is cancelled.
class EchoService final : public v1::TranslationService::Service {
 public:
  grpc::Status Translate(grpc::ServerContext* context,
                         const v1::TranslateRequest* request,
                         v1::TranslateResponse* response) override {
    response->set_model(request->model());
    if (request->model() != "wait") return grpc::Status::OK;
    entered_.set_value();
    while (released_.wait_for(milliseconds(1)) != std::future_status::ready) {
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

  void WaitUntilEntered() { entered_.get_future().wait(); }
  void Release() { release_.set_value(); }

 private:
  std::promise<void> entered_;
  std::promise<void> release_;
  const std::shared_future<void> released_ = release_.get_future().share();
};

absl::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                  const std::string& model) {
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  v1::TranslateRequest request;
  request.set_model(model);
  v1::TranslateResponse response;
  const absl::Status status =
      FromGrpcStatus(v1::TranslationService::NewStub(channel)->Translate(
          &context, request, &response));
  if (status.ok()) {
    EXPECT_EQ(response.model(), model);
  }
  return status;
}

// Calls a method by name, with messages that have the same wire fields as its
// own.
template <typename Response, typename Request>
absl::StatusOr<Response> CallAny(const std::shared_ptr<grpc::Channel>& channel,
                                 const std::string& method,
                                 const Request& request) {
  grpc::TemplatedGenericStub<Request, Response> stub(channel);
  grpc::ClientContext context;
  SetDeadline(context, kLong);
  Response response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, {}, &request, &response,
                 [&](grpc::Status status) { done.set_value(status); });
  const grpc::Status status = done.get_future().get();
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

// grpc.health.v1: 1 is SERVING, 2 NOT_SERVING.
absl::StatusOr<int> Health(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& service) {
  v1::WatchJobRequest request;  // field 1: a string
  request.set_job(service);
  const auto response =  // field 1: a number
      CallAny<v1::Status>(channel, "/grpc.health.v1.Health/Check", request);
  if (!response.ok()) return response.status();
  return response->code();
}

class ServerShellTest : public ::testing::Test {
 protected:
  ServerShellTest() {
    char name[] = "/tmp/gshard_server_XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~ServerShellTest() override { std::filesystem::remove_all(directory_); }

  std::string SocketPath() const { return directory_ + "/socket"; }
  std::string SocketAddress() const { return "unix:" + SocketPath(); }

  std::unique_ptr<ServerShell> MakeServer(const ServerOptions& options) {
    auto server = std::make_unique<ServerShell>(options);
    server->AddService(&service_, v1::TranslationService::service_full_name());
    return server;
  }

  std::string directory_;
  EchoService service_;
};

TEST_F(ServerShellTest, RefusesCallsBeyondTheMostUnreadUntilOneIsOver) {
  Metrics metrics("router", "1");
  const auto server = MakeServer({.address = SocketAddress(), .max_calls = 1});
  server->AddMetrics(metrics);
  ASSERT_OK(server->Start());
  server->SetReady(true);
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server->address()));
  std::future<absl::Status> first =
      std::async(std::launch::async, [&] { return Call(channel, "wait"); });
  service_.WaitUntilEntered();
  EXPECT_THAT(metrics.Serialize(), HasSubstr("gshard_server_calls 1\n"));
  EXPECT_THAT(Call(channel, "m"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("at most 1")));
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr("gshard_server_calls_refused_total 1\n"));
  // Health checks are answered even when other calls are refused.
  ASSERT_OK_AND_ASSIGN(const int health, Health(channel, ""));
  EXPECT_EQ(health, 1);
  service_.Release();
  EXPECT_OK(first.get());
  // gRPC releases a call a moment after its client has the answer.
  while (!absl::StrContains(metrics.Serialize(), "gshard_server_calls 0\n")) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_OK(Call(channel, "m"));
}

TEST_F(ServerShellTest, TheReadyMetricIsWhatHealthSays) {
  Metrics metrics("router", "1");
  const auto server = MakeServer({.address = SocketAddress()});
  server->AddMetrics(metrics);
  const auto ready = [&metrics](int value) {
    return absl::StrContains(metrics.Serialize(),
                             absl::StrCat("gshard_ready ", value, "\n"));
  };
  EXPECT_TRUE(ready(0));
  ASSERT_OK(server->Start());
  EXPECT_TRUE(ready(0));
  server->SetReady(true);
  EXPECT_TRUE(ready(1));
  server->SetServiceReady(v1::TranslationService::service_full_name(), false);
  EXPECT_TRUE(ready(0));
  server->SetServiceReady(v1::TranslationService::service_full_name(), true);
  EXPECT_TRUE(ready(1));
  server->EndReadiness();
  EXPECT_TRUE(ready(0));
}

TEST_F(ServerShellTest, ReportsThePortThatItBound) {
  const auto server = MakeServer({.address = "127.0.0.1:0"});
  ASSERT_OK(server->Start());
  EXPECT_THAT(server->address(),
              AllOf(StartsWith("127.0.0.1:"), Not(HasSubstr(":0"))));
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server->address()));
  EXPECT_OK(Call(channel, "m"));

  EXPECT_THAT(
      MakeServer({.address = server->address()})->Start(),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(server->address())));
}

TEST_F(ServerShellTest, ServesAUnixSocketAndRemovesIt) {
  {
    const auto server = MakeServer({.address = SocketAddress()});
    ASSERT_OK(server->Start());
    EXPECT_EQ(server->address(), SocketAddress());
    ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(SocketAddress()));
    EXPECT_OK(Call(channel, "m"));
  }
  EXPECT_FALSE(std::filesystem::exists(SocketPath()));
}

TEST_F(ServerShellTest, SaysWhyThereCanBeNoSocket) {
  EXPECT_THAT(
      MakeServer({.address = "unix:" + directory_ + "/none/socket"})->Start(),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("/none: No such file")));
}

TEST_F(ServerShellTest, RefusesTheSocketOfALiveServer) {
  const auto first = MakeServer({.address = SocketAddress()});
  ASSERT_OK(first->Start());
  EXPECT_THAT(
      MakeServer({.address = SocketAddress()})->Start(),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(SocketAddress())));
  // The first server still works.
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(SocketAddress()));
  EXPECT_OK(Call(channel, "m"));
}

TEST_F(ServerShellTest, ReplacesTheSocketOfADeadServer) {
  // Bound and closed without unlink, as by a killed process.
  const int file = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, SocketPath().c_str());
  ASSERT_EQ(bind(file, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  close(file);
  ASSERT_TRUE(std::filesystem::exists(SocketPath()));

  const auto server = MakeServer({.address = SocketAddress()});
  ASSERT_OK(server->Start());
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(SocketAddress()));
  EXPECT_OK(Call(channel, "m"));
}

TEST_F(ServerShellTest, LeavesOtherFilesAlone) {
  std::ofstream(SocketPath()) << "precious";
  EXPECT_THAT(MakeServer({.address = SocketAddress()})->Start(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is not a socket")));
  EXPECT_EQ(std::filesystem::file_size(SocketPath()), 8u);
}

TEST_F(ServerShellTest, ChecksItsOptions) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(MakeServer({.address = "nowhere"})->Start(),
              StatusIs(kInvalid, HasSubstr("\"nowhere\"")));
  EXPECT_THAT(MakeServer({.max_message_bytes = 10})->Start(),
              StatusIs(kInvalid, HasSubstr("max_message_bytes")));
  EXPECT_THAT(MakeServer({.max_calls_per_connection = 0})->Start(),
              StatusIs(kInvalid, HasSubstr("max_calls_per_connection")));
  EXPECT_THAT(MakeServer({.address = "0.0.0.0:0"})->Start(),
              StatusIs(kInvalid, HasSubstr("--insecure")));
  EXPECT_THAT(MakeServer({.max_connection_age = milliseconds(10)})->Start(),
              StatusIs(kInvalid, HasSubstr("max_connection_age")));

  const auto open = MakeServer({.address = "203.0.113.1:0"});
  ASSERT_OK_AND_ASSIGN(const auto security,
                       Security::CreateForServer({.insecure = true}, ""));
  open->UseSecurity(security);
  EXPECT_THAT(open->Start(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("203.0.113")));
}

TEST_F(ServerShellTest, LimitsMessages) {
  const auto server = MakeServer({.max_message_bytes = 2048});
  ASSERT_OK(server->Start());
  const auto channel = server->InProcessChannel();
  EXPECT_OK(Call(channel, std::string(1900, 'm')));
  EXPECT_THAT(Call(channel, std::string(2100, 'm')),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("larger than max")));
}

TEST_F(ServerShellTest, UnpacksNothing) {
  const auto server = MakeServer({.address = SocketAddress()});
  ASSERT_OK(server->Start());
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server->address()));
  const auto stub = v1::TranslationService::NewStub(channel);
  v1::TranslateRequest request;
  request.set_model(std::string(100'000, 'm'));
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    grpc::ClientContext context;
    SetDeadline(context, kLong);
    context.set_compression_algorithm(algorithm);
    v1::TranslateResponse response;
    EXPECT_THAT(
        FromGrpcStatus(stub->Translate(&context, request, &response)),
        StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("ompression")));
  }
  EXPECT_OK(Call(channel, request.model()));
}

TEST_F(ServerShellTest, HealthFollowsReadinessUntilTheDrain) {
  const auto server = MakeServer({});
  int health_while_draining = 0;
  server->OnDrain([&] {
    server->SetReady(true);  // too late
    health_while_draining = *Health(server->InProcessChannel(), "");
  });
  ASSERT_OK(server->Start());
  const auto channel = server->InProcessChannel();
  const std::string service = "gshard.v1.TranslationService";
  EXPECT_EQ(*Health(channel, ""), 2);
  EXPECT_EQ(*Health(channel, service), 2);
  server->SetReady(true);
  EXPECT_EQ(*Health(channel, ""), 1);
  EXPECT_EQ(*Health(channel, service), 1);
  server->SetReady(false);
  EXPECT_EQ(*Health(channel, ""), 2);
  server->SetReady(true);
  EXPECT_THAT(Health(channel, "no.such.Service"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
  server->Drain(kLong);
  EXPECT_EQ(health_while_draining, 2);
}

TEST_F(ServerShellTest, ReflectionIsBehindItsFlag) {
  const std::string method =
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  // field 7: list_services
  v1::TensorFrameHeader request;
  const auto with = MakeServer({.reflection = true});
  ASSERT_OK(with->Start());
  const auto without = MakeServer({});
  ASSERT_OK(without->Start());
  EXPECT_THAT(
      (CallAny<v1::Status>(without->InProcessChannel(), method, request)),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("")));
  EXPECT_NE((CallAny<v1::Status>(with->InProcessChannel(), method, request))
                .status()
                .code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(ServerShellTest, DrainLetsCallsFinish) {
  const auto server = MakeServer({.address = SocketAddress()});
  // Accepted calls finish during the drain.
  server->OnDrain([&] { service_.Release(); });
  ASSERT_OK(server->Start());
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(SocketAddress()));
  std::future<absl::Status> call =
      std::async(std::launch::async, [&] { return Call(channel, "wait"); });
  service_.WaitUntilEntered();
  std::thread waiter([&] { server->Wait(); });
  server->Drain(kLong);
  EXPECT_OK(call.get());
  waiter.join();
  EXPECT_THAT(Call(channel, "m"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  server->Drain(kLong);  // already drained
}

TEST_F(ServerShellTest, DrainCancelsCallsAfterItsGrace) {
  const auto server = MakeServer({});
  ASSERT_OK(server->Start());
  const auto channel = server->InProcessChannel();
  std::future<absl::Status> call =
      std::async(std::launch::async, [&] { return Call(channel, "wait"); });
  service_.WaitUntilEntered();
  server->Drain(milliseconds(1));
  const absl::StatusCode code = call.get().code();
  EXPECT_TRUE(code == absl::StatusCode::kCancelled ||
              code == absl::StatusCode::kUnavailable)
      << absl::StatusCodeToString(code);
}

TEST_F(ServerShellTest, EndsWithoutAStart) { MakeServer({}); }

}  // namespace
}  // namespace gshard
