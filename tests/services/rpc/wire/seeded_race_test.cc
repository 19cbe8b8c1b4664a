// Deliberate races, one per test, that ThreadSanitizer must find although it
// does not see into gRPC. CTest expects a report of each; see
// services/rpc/wire/call_ordering.cc.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/server/server.h"
#include "services/rpc/server/server_stream.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

// The data that two threads race for. ThreadSanitizer can miss accesses at the
// very same moment, so there are many.
struct Shared {
  void Race() {
    for (int i = 0; i < 1000; ++i) unguarded = unguarded + 1;
  }

  // Returns when both racing threads have arrived, so that neither runs after
  // the other. Orders nothing.
  void Meet() {
    arrived.fetch_add(1, std::memory_order_relaxed);
    const auto end = Clock::now() + std::chrono::seconds(10);
    while (arrived.load(std::memory_order_relaxed) < 2 && Clock::now() < end) {
    }
  }

  std::atomic<int> arrived = 0;
  volatile int unguarded = 0;
};

class Translator final
    : public v1::TranslationService::WithCallbackMethod_Translate<
          v1::TranslationService::Service> {
 public:
  explicit Translator(Shared* shared) : shared_(shared) {}

  grpc::ServerUnaryReactor* Translate(grpc::CallbackServerContext* context,
                                      const v1::TranslateRequest*,
                                      v1::TranslateResponse*) override {
    shared_->Meet();
    shared_->Race();
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  Shared* const shared_;
};

class RacingHandler final : public StreamHandler<v1::JoinRequest> {
 public:
  RacingHandler(Shared* shared,
                std::shared_ptr<StreamSender<v1::JoinResponse>> sender)
      : shared_(shared), sender_(std::move(sender)) {}

  void OnMessage(v1::JoinRequest) override {
    shared_->Meet();
    shared_->Race();
    sender_->Finish();
  }
  void OnEnd(const absl::Status&) override {}

 private:
  Shared* const shared_;
  const std::shared_ptr<StreamSender<v1::JoinResponse>> sender_;
};

class Coordinator final
    : public v1::CoordinatorService::WithRawCallbackMethod_Join<
          v1::CoordinatorService::Service> {
 public:
  explicit Coordinator(Shared* shared) : shared_(shared) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Join(
      grpc::CallbackServerContext* context) override {
    return ServeStream<v1::JoinRequest, v1::JoinResponse>(
        context, [this](auto sender) {
          return std::make_unique<RacingHandler>(shared_, std::move(sender));
        });
  }

 private:
  Shared* const shared_;
};

// Signals the end of a stream.
class EndPromise final : public StreamHandler<v1::JoinResponse> {
 public:
  explicit EndPromise(std::promise<void>* ended) : ended_(ended) {}
  void OnMessage(v1::JoinResponse) override {}
  void OnEnd(const absl::Status&) override { ended_->set_value(); }

 private:
  std::promise<void>* const ended_;
};

class SeededRace : public ::testing::Test {
 protected:
  void Serve(grpc::Service* service, absl::string_view name) {
    server_ = std::make_unique<ServerShell>(ServerOptions{
        .address = absl::StrCat("unix:/tmp/gshard_race_", getpid())});
    server_->AddService(service, name);
    ASSERT_TRUE(server_->Start().ok());
  }

  std::shared_ptr<grpc::Channel> Connect() {
    return CreateChannel(server_->address(), {}).value();
  }

  void Translate() {
    grpc::ClientContext context;
    v1::TranslateResponse response;
    const auto stub = v1::TranslationService::NewStub(Connect());
    EXPECT_TRUE(
        stub->Translate(&context, v1::TranslateRequest(), &response).ok());
  }

  Shared shared_;
  std::unique_ptr<ServerShell> server_;
};

TEST_F(SeededRace, BetweenCalls) {
  Translator service(&shared_);
  Serve(&service, v1::TranslationService::service_full_name());
  std::thread other([this] { Translate(); });
  Translate();
  other.join();
  server_ = nullptr;
}

TEST_F(SeededRace, BetweenStreams) {
  Coordinator service(&shared_);
  Serve(&service, v1::CoordinatorService::service_full_name());
  const std::shared_ptr<grpc::Channel> channel = Connect();
  std::promise<void> ended[2];
  for (std::promise<void>& end : ended) {
    const auto sender = OpenStream<v1::JoinRequest, v1::JoinResponse>(
        channel, "/gshard.v1.CoordinatorService/Join",
        [&](auto) { return std::make_unique<EndPromise>(&end); });
    EXPECT_TRUE(sender->Send(v1::JoinRequest()).ok());
  }
  for (std::promise<void>& end : ended) end.get_future().wait();
  server_ = nullptr;
}

TEST_F(SeededRace, BetweenHandlerAndOwner) {
  Translator service(&shared_);
  Serve(&service, v1::TranslationService::service_full_name());
  std::thread caller([this] { Translate(); });
  shared_.Meet();
  shared_.Race();
  caller.join();
  server_ = nullptr;
}

}  // namespace
}  // namespace gshard
