#include "services/rpc/server/health_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "proto/gshard/v1/status.pb.h"
#include "services/rpc/server/server.h"
#include "tests/services/rpc/secure_server.h"
#include "tests/testing/raw_http2.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;

constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";
constexpr int kServing = 1;
constexpr int kNotServing = 2;
constexpr int kNoService = 3;

// These messages have the same wire fields as the two of grpc.health.v1.
using Request = v1::WatchJobRequest;  // 1: a string
using Response = v1::Status;          // 1: a number

// A Watch call.
class Watch {
 public:
  Watch(const std::shared_ptr<grpc::Channel>& channel,
        const std::string& service) {
    SetDeadline(context_, std::chrono::minutes(1));
    Request request;
    request.set_job(service);
    const grpc::internal::RpcMethod method(
        kWatch, grpc::internal::RpcMethod::SERVER_STREAMING);
    reader_.reset(grpc::internal::ClientReaderFactory<Response>::Create(
        channel.get(), method, &context_, request));
  }

  // The next answer; -1 at the end.
  int Next() {
    Response response;
    return reader_->Read(&response) ? response.code() : -1;
  }
  absl::Status End() {
    Response response;
    while (reader_->Read(&response)) continue;
    return FromGrpcStatus(reader_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<Response>> reader_;
};

class HealthServiceTest : public ::testing::Test {
 protected:
  HealthServiceTest() {
    server_.AddService(&service_, "gshard.v1.TranslationService");
    EXPECT_OK(server_.Start());
    channel_ = *CreateChannel(server_.address());
  }

  InfoService service_;
  ServerShell server_{{.address = "127.0.0.1:0"}};
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(HealthServiceTest, WatchersAreToldOfWhatChanges) {
  Watch all(channel_, "");
  Watch one(channel_, "gshard.v1.TranslationService");
  Watch none(channel_, "no.such.Service");
  EXPECT_EQ(all.Next(), kNotServing);
  EXPECT_EQ(one.Next(), kNotServing);
  EXPECT_EQ(none.Next(), kNoService);
  server_.SetReady(true);
  EXPECT_EQ(all.Next(), kServing);
  EXPECT_EQ(one.Next(), kServing);
  server_.SetServiceReady("gshard.v1.TranslationService", false);
  EXPECT_EQ(one.Next(), kNotServing);
  server_.EndReadiness();
  EXPECT_EQ(all.Next(), kNotServing);
  // Watchers do not delay the drain.
  server_.Drain(std::chrono::minutes(10));
  for (Watch* const watch : {&all, &one, &none}) {
    EXPECT_EQ(watch->End().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(HealthServiceTest, ThereAreSoManyWatchersAndAnyNumberOfChecks) {
  server_.SetReady(true);
  std::vector<std::unique_ptr<RawHttp2>> clients;
  constexpr int kStreams = 200;
  for (int open = 0; open <= HealthService::kMaxWatchers; open += kStreams) {
    clients.push_back(*RawHttp2::Connect(server_.address()));
    for (int i = 0; i < kStreams; ++i) {
      clients.back()->SendMessage(clients.back()->BeginCall(kWatch), 0, 0);
    }
  }
  // A host may have two thirds of them.
  const int too_many = static_cast<int>(clients.size()) * kStreams -
                       static_cast<int>(HealthService::kMaxWatchers * 2 / 3);
  EXPECT_TRUE(Eventually([&] {
    int refused = 0;
    for (const auto& client : clients) {
      EXPECT_TRUE(client->Step());
      for (uint32_t stream = 1; stream < 2 * kStreams; stream += 2) {
        refused += client->status_of(stream) == GRPC_STATUS_RESOURCE_EXHAUSTED;
      }
    }
    return refused == too_many;
  }));
  // Another host finds room.
  const auto other = *RawHttp2::Connect(server_.address(), "127.0.0.2");
  const uint32_t watch = other->BeginCall(kWatch);
  other->SendMessage(watch, 0, 0);
  EXPECT_TRUE(Eventually([&] {
    return !other->Step() || other->answered(watch) ||
           other->status_of(watch) >= 0;
  }));
  EXPECT_TRUE(other->answered(watch));
  EXPECT_EQ(other->status_of(watch), -1);
  const uint32_t check =
      clients.back()->BeginCall("/grpc.health.v1.Health/Check");
  clients.back()->SendMessage(check, 0, 0);
  EXPECT_TRUE(Eventually([&] {
    return !clients.back()->Step() || clients.back()->status_of(check) >= 0;
  }));
  // Closed watchers free their places.
  clients.clear();
  EXPECT_TRUE(Eventually([&] {
    Watch watch(channel_, "");
    return watch.Next() == kServing;
  }));
}

TEST_F(HealthServiceTest, WhatIsNoRequestIsRefused) {
  const auto client = *RawHttp2::Connect(server_.address());
  // Field number 0 is invalid.
  for (const char* method : {"/grpc.health.v1.Health/Check", kWatch}) {
    const uint32_t call = client->BeginCall(method);
    client->SendMessage(call, 1, 1);
    EXPECT_TRUE(Eventually(
        [&] { return !client->Step() || client->status_of(call) >= 0; }));
    EXPECT_EQ(client->status_of(call), GRPC_STATUS_INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace gshard
