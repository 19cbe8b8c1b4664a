// Limits on what clients can make a ServerShell hold.

#include "services/rpc/server/connection_watch.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/checkpoint/sha256.h"
#include "services/rpc/server/raw_service.h"
#include "services/rpc/server/server.h"
#include "services/rpc/server/server_stream.h"
#include "tests/services/rpc/secure_server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/raw_http2.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::_;
using ::testing::HasSubstr;

constexpr char kHealth[] = "/grpc.health.v1.Health/Check";
constexpr char kHealthWatch[] = "/grpc.health.v1.Health/Watch";
constexpr char kTranslate[] = "/gshard.v1.TranslationService/Translate";
constexpr char kPush[] = "/gshard.v1.CoordinatorService/PushGradients";
constexpr uint32_t kMebibyte = 1 << 20;

// Answers with the request's model, and counts the calls.
class Translation final
    : public RawService<v1::TranslationService::WithRawCallbackMethod_Translate<
          v1::TranslationService::Service>> {
 public:
  Translation() {
    DeferRead(MethodIndex("gshard.v1.TranslationService.Translate"),
              &Translation::Translate);
  }
  grpc::ServerUnaryReactor* Translate(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override {
    ++calls_;
    return ServeUnary<v1::TranslateRequest, v1::TranslateResponse>(
        context, *request, response, [](const auto& asked, auto done) {
          v1::TranslateResponse answer;
          answer.set_model(asked.model());
          done(answer);
        });
  }
  int calls() const { return calls_; }

 private:
  std::atomic<int> calls_{0};
};

// Reads and discards members' uploads.
class Gradients final
    : public RawService<
          v1::CoordinatorService::WithRawCallbackMethod_PushGradients<
              v1::CoordinatorService::Service>> {
 public:
  grpc::ServerReadReactor<grpc::ByteBuffer>* PushGradients(
      grpc::CallbackServerContext*, grpc::ByteBuffer*) override {
    return new Reader;
  }

 private:
  class Reader final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
   public:
    Reader() { StartRead(&message_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::CANCELLED);
      StartRead(&message_);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer message_;
  };
};

class ConnectionWatchTest : public ::testing::Test {
 protected:
  void Start(ServerOptions options, const SecurityOptions& security = {}) {
    if (options.address.empty()) options.address = "127.0.0.1:0";
    server_.reset();
    metrics_ = std::make_unique<Metrics>("router", "1");
    server_ = std::make_unique<ServerShell>(options);
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Security> secure,
                         Security::CreateForServer(security, options.address));
    server_->UseSecurity(secure);
    server_->AddService(&translation_,
                        v1::TranslationService::service_full_name());
    server_->AddService(&gradients_,
                        v1::CoordinatorService::service_full_name());
    server_->AddMetrics(*metrics_);
    ASSERT_OK(server_->Start());
    server_->SetReady(true);
  }

  // Options with one caller: "shop", a translator with this token.
  SecurityOptions WithCallers(const std::string& token = "sesame") {
    return {.auth_file = files_.Write(
                "callers",
                absl::StrCat("shop token ", Sha256(token), " translate\n"))};
  }

  std::unique_ptr<RawHttp2> Connect() {
    auto client = RawHttp2::Connect(server_->address());
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  // A connection with uploads that never finish.
  std::unique_ptr<RawHttp2> Stall(const std::string& method, int streams,
                                  uint32_t declared,
                                  const std::string& token = "") {
    std::unique_ptr<RawHttp2> client = Connect();
    for (int i = 0; i < streams; ++i) {
      client->SendMessage(client->BeginCall(method, token), declared,
                          declared - 1);
    }
    return client;
  }

  // Steps until `streams` streams have ended. False if the connection ends or
  // `most` passes first.
  static bool EventuallyEnds(RawHttp2& client, int streams, milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (std::chrono::steady_clock::now() < end) {
      if (!client.Step()) return false;
      if (client.streams_ended() >= streams) return true;
      client.Wait(milliseconds(10));
    }
    return false;
  }

  double Value(const std::string& metric) const {
    const std::string all = metrics_->Serialize();
    const size_t at = all.find(absl::StrCat("\n", metric, " "));
    return at == std::string::npos
               ? -1
               : std::stod(all.substr(at + metric.size() + 2));
  }

  const Certificates files_;
  std::unique_ptr<Metrics> metrics_;
  Translation translation_;
  Gradients gradients_;
  std::unique_ptr<ServerShell> server_;
};

TEST_F(ConnectionWatchTest, StalledHealthChecksOfStrangersEndTheirConnection) {
  Start({}, WithCallers());
  ASSERT_OK_AND_ASSIGN(const auto security,
                       Security::CreateForClient(
                           {.token_file = files_.Write("token", "sesame\n")}));
  ASSERT_OK_AND_ASSIGN(
      const auto honest,
      CreateChannel(server_->address(), {.security = security}));
  EXPECT_OK(SecureServer::CallOn(honest));
  const auto client = Stall(kHealth, 20, 60 * kMebibyte);
  EXPECT_TRUE(Eventually([&] {
    // Other connections keep working meanwhile.
    EXPECT_OK(SecureServer::CallOn(honest));
    return !client->Step();
  }));
  // Of 1,200 MiB.
  EXPECT_LT(client->bytes_taken(), int64_t{64} * kMebibyte);
  EXPECT_OK(SecureServer::CallOn(honest));
  EXPECT_TRUE(
      Eventually([&] { return Value("gshard_server_connections") == 1; }));
  EXPECT_EQ(Value("gshard_server_connections_ended_total"), 1);
  EXPECT_TRUE(
      Eventually([&] { return Value("gshard_server_held_bytes") == 0; }));
}

TEST_F(ConnectionWatchTest, NewcomersWaitTheirTurnAfterAnEnd) {
  Start({});
  const auto client = Stall(kHealth, 1, 60 * kMebibyte);
  EXPECT_TRUE(Eventually([&] { return !client->Step(); }));
  std::vector<std::unique_ptr<RawHttp2>> others;
  for (int i = 0; i < 40; ++i) others.push_back(Connect());
  EXPECT_TRUE(Eventually(
      [&] { return Value("gshard_server_connections") >= others.size(); }));
  ASSERT_OK_AND_ASSIGN(const auto honest, CreateChannel(server_->address()));
  // A connection that closes while it waits takes no turn.
  others.clear();
  EXPECT_OK(SecureServer::CallOn(honest));
  EXPECT_TRUE(
      Eventually([&] { return Value("gshard_server_connections") == 1; }));
  // Connections that still wait when the server ends are closed.
  for (int i = 0; i < 40; ++i) others.push_back(Connect());
  EXPECT_TRUE(Eventually(
      [&] { return Value("gshard_server_connections") > others.size(); }));
}

TEST_F(ConnectionWatchTest, UploadsThatAreTooLongEndTheirConnection) {
  Start({}, WithCallers());
  const auto client = Stall(kTranslate, 10, 60 * kMebibyte, "sesame");
  EXPECT_TRUE(Eventually([&] { return !client->Step(); }));
  EXPECT_LT(client->bytes_taken(), int64_t{128} * kMebibyte);
}

// Uploads that are each within a router's limit are bounded together, across
// connections.
TEST_F(ConnectionWatchTest, UploadsOfManyConnectionsAreBoundedTogether) {
  Start({.limits = {.held_bytes = 16 * kMebibyte}}, WithCallers());
  std::vector<std::unique_ptr<RawHttp2>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(Stall(kTranslate, 2, 3 * kMebibyte, "sesame"));
  }
  const auto done = [&] {
    bool all_sent = true;
    for (const auto& client : clients) {
      if (client->Step() && client->bytes_waiting() > 0) all_sent = false;
    }
    return all_sent;
  };
  EXPECT_TRUE(Eventually(done));
  // Fewer than five of the connections fit within the limit.
  EXPECT_TRUE(Eventually(
      [&] { return Value("gshard_server_connections_ended_total") >= 15; }));
  EXPECT_LE(Value("gshard_server_held_bytes"), 16 * kMebibyte);
}

TEST_F(ConnectionWatchTest, MembersMaySendLargeMessages) {
  Start({});
  const auto client = Stall(kPush, 4, 60 * kMebibyte);
  EXPECT_TRUE(Eventually(
      [&] { return !client->Step() || client->bytes_waiting() == 0; }));
  EXPECT_FALSE(client->ended());
  EXPECT_EQ(Value("gshard_server_connections_ended_total"), 0);
  EXPECT_EQ(Value("gshard_server_held_bytes"), 0);
}

TEST_F(ConnectionWatchTest, HonestUploadsAreNotHeldAgainstAnybody) {
  // On a busy machine all four uploads may arrive before one is delivered.
  Start({.limits = {.held_bytes = 17 * kMebibyte}});
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server_->address()));
  std::vector<std::future<void>> threads;
  for (int i = 0; i < 4; ++i) {
    threads.push_back(std::async(std::launch::async, [&] {
      const std::string text(4 * kMebibyte - 100, 'm');
      for (int call = 0; call < 40; ++call) {
        EXPECT_OK(SecureServer::CallOn(channel, text));
      }
    }));
  }
  for (auto& thread : threads) thread.get();
  EXPECT_EQ(Value("gshard_server_connections_ended_total"), 0);
  EXPECT_EQ(Value("gshard_server_connections"), 1);
}

TEST_F(ConnectionWatchTest, TlsHidesNothing) {
  const SecurityOptions member{.tls_certificate = files_.Certificate("member"),
                               .tls_key = files_.Key("member"),
                               .tls_ca = files_.Authority()};
  Start({}, member);
  ASSERT_OK_AND_ASSIGN(const auto security, Security::CreateForClient(member));
  ASSERT_OK_AND_ASSIGN(
      const auto channel,
      CreateChannel(server_->address(), {.security = security}));
  EXPECT_OK(
      SecureServer::CallOn(channel, std::string(4 * kMebibyte - 100, 'm')));
  EXPECT_THAT(SecureServer::CallOn(channel, std::string(60 * kMebibyte, 'm')),
              StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_EQ(Value("gshard_server_connections_ended_total"), 1);
  EXPECT_OK(SecureServer::CallOn(channel));
}

TEST_F(ConnectionWatchTest, ARequestThatDoesNotComeEndsItsCallAlone) {
  for (const std::string& address :
       {std::string("127.0.0.1:0"), "unix:" + files_.Path("socket")}) {
    Start({.address = address, .limits = {.request_time = milliseconds(50)}});
    const auto client = Connect();
    const uint32_t none = client->BeginCall(kHealth);
    const uint32_t half = client->BeginCall(kHealth);
    client->SendMessage(half, 100, 99);
    const uint32_t push = client->BeginCall(kPush);
    EXPECT_TRUE(Eventually([&] {
      return !client->Step() ||
             (client->status_of(none) >= 0 && client->status_of(half) >= 0);
    }));
    EXPECT_EQ(client->status_of(none), GRPC_STATUS_DEADLINE_EXCEEDED);
    EXPECT_EQ(client->status_of(half), GRPC_STATUS_DEADLINE_EXCEEDED);
    EXPECT_EQ(client->status_of(push), -1);
    EXPECT_FALSE(client->ended());
    EXPECT_EQ(Value("gshard_server_calls_late_total"), 2);
    const uint32_t good = client->BeginCall(kHealth);
    client->SendMessage(good, 0, 0);
    EXPECT_TRUE(Eventually([&] {
      return !client->Step() || client->status_of(good) >= 0 ||
             client->streams_ended() == 3;
    }));
    EXPECT_FALSE(client->ended());
  }
}

// Such calls end in the log as they do for the client.
TEST_F(ConnectionWatchTest,
       ARequestThatDoesNotComeIsLoggedAsWhatTheClientSees) {
  Start({.limits = {.request_time = milliseconds(50)}});
  ::testing::internal::CaptureStderr();
  auto client = Connect();
  const uint32_t late = client->BeginCall(kTranslate);
  EXPECT_TRUE(Eventually(
      [&] { return !client->Step() || client->status_of(late) >= 0; }));
  EXPECT_EQ(client->status_of(late), GRPC_STATUS_DEADLINE_EXCEEDED);
  server_->Drain(milliseconds(0));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(absl::StrCat("\"method\":\"", kTranslate,
                                     "\",\"code\":\"DEADLINE_EXCEEDED\"")));

  Start({});
  ::testing::internal::CaptureStderr();
  client = Connect();
  const uint32_t cancelled = client->BeginCall(kTranslate);
  // The guard, which takes calls in order, has let it pass.
  const uint32_t unknown = client->BeginCall("/no.such.Service/Method");
  EXPECT_TRUE(Eventually(
      [&] { return !client->Step() || client->status_of(unknown) >= 0; }));
  // RST_STREAM with the code CANCEL.
  client->SendBytes(
      RawHttp2::Frame(3, 0, cancelled, absl::string_view("\0\0\0\x8", 4)));
  EXPECT_TRUE(client->Step());
  client.reset();
  server_->Drain(milliseconds(60'000));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(absl::StrCat("\"method\":\"", kTranslate,
                                     "\",\"code\":\"CANCELLED\"")));
  EXPECT_EQ(translation_.calls(), 0);
}

TEST_F(ConnectionWatchTest, ARequestThatDoesNotComeMayMissItsDeadline) {
  std::string log;
  // The call may miss it before the server knows of it.
  for (milliseconds timeout(100); !absl::StrContains(log, kTranslate);
       timeout *= 2) {
    ASSERT_LT(timeout, std::chrono::minutes(1));
    Start({});
    ::testing::internal::CaptureStderr();
    grpc::GenericStub stub(*CreateChannel(server_->address()));
    grpc::ClientContext context;
    SetDeadline(context, timeout, /*wait_for_ready=*/true);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, kTranslate, &queue);
    call->StartCall(nullptr);
    grpc::Status status;
    call->Finish(&status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    server_->Drain(milliseconds(0));
    log = ::testing::internal::GetCapturedStderr();
  }
  EXPECT_THAT(log, HasSubstr("\"code\":\"DEADLINE_EXCEEDED\""));
}

// A client that blocks its answers keeps calls, and their memory, open: such
// health checks are limited to 16 and end after request_time.
TEST_F(ConnectionWatchTest, HealthChecksWhoseAnswersAreNotTakenAreFewAndEnd) {
  Start({.limits = {.request_time = std::chrono::milliseconds(300)}},
        WithCallers());
  const auto client = Connect();
  // SETTINGS_INITIAL_WINDOW_SIZE is 0.
  client->SendBytes(
      RawHttp2::Frame(4, 0, 0, absl::string_view("\0\x4\0\0\0\0", 6)));
  std::vector<uint32_t> checks;
  for (int i = 0; i < 17; ++i) {
    checks.push_back(client->BeginCall(kHealth));
    client->SendMessage(checks.back(), 0, 0);
    // The server knows the first 16 checks before the last one arrives.
    if (i == 15) {
      EXPECT_FALSE(EventuallyEnds(*client, 1, milliseconds(50)));
    }
  }
  EXPECT_TRUE(EventuallyEnds(*client, 1, milliseconds(10'000)));
  EXPECT_EQ(client->status_of(checks[16]), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(EventuallyEnds(*client, 17, milliseconds(10'000)));
  EXPECT_EQ(Value("gshard_server_calls_late_total"), 16);
}

// All calls begin while there is room, and only then are their requests sent.
TEST_F(ConnectionWatchTest, CallsThatWaitWithTheirRequestsFindNoMoreRoom) {
  Start({.max_calls = 2});
  const auto client = Connect();
  // SETTINGS_INITIAL_WINDOW_SIZE is 0: what is answered stays open.
  client->SendBytes(
      RawHttp2::Frame(4, 0, 0, absl::string_view("\0\x4\0\0\0\0", 6)));
  std::vector<uint32_t> calls;
  for (int i = 0; i < 6; ++i) calls.push_back(client->BeginCall(kTranslate));
  // The guard, which takes calls in order, has let them pass.
  const uint32_t unknown = client->BeginCall("/no.such.Service/Method");
  EXPECT_TRUE(Eventually(
      [&] { return !client->Step() || client->status_of(unknown) >= 0; }));
  for (const uint32_t call : calls) client->SendMessage(call, 0, 0);
  const auto refused = [&] {
    return std::count_if(calls.begin(), calls.end(), [&](uint32_t call) {
      return client->status_of(call) == GRPC_STATUS_UNAVAILABLE;
    });
  };
  EXPECT_TRUE(Eventually([&] { return !client->Step() || refused() == 4; }));
  EXPECT_TRUE(Eventually([&] { return translation_.calls() == 2; }));
  EXPECT_EQ(Value("gshard_server_calls"), 2);
  EXPECT_EQ(Value("gshard_server_calls_refused_total"), 4);
  // A member's call finds room.
  client->BeginCall(kPush);
  EXPECT_TRUE(Eventually(
      [&] { return !client->Step() || Value("gshard_server_calls") == 3; }));
  EXPECT_EQ(translation_.calls(), 2);
  EXPECT_FALSE(client->ended());
}

TEST_F(ConnectionWatchTest, AFullServerAnswersProbesOfItsMachine) {
  Start({.limits = {.connections = 2}});
  std::vector<std::unique_ptr<RawHttp2>> clients;
  for (const char* from : {"127.0.0.2", "127.0.0.3", "127.0.0.4"}) {
    ASSERT_OK_AND_ASSIGN(auto client,
                         RawHttp2::Connect(server_->address(), from));
    clients.push_back(std::move(client));
  }
  EXPECT_TRUE(Eventually([&] { return !clients.back()->Step(); }));
  EXPECT_TRUE(
      Eventually([&] { return Value("gshard_server_connections") == 2; }));
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server_->address()));
  EXPECT_OK(SecureServer::CallOn(channel));
  EXPECT_EQ(Value("gshard_server_connections"), 3);
  EXPECT_TRUE(clients.front()->Step());
}

TEST_F(ConnectionWatchTest, OneHostHasSoManyConnections) {
  Start({.limits = {.peer_connections = 3}});
  std::vector<std::unique_ptr<RawHttp2>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Connect());
  EXPECT_TRUE(
      Eventually([&] { return Value("gshard_server_connections") == 3; }));
  const auto refused = Connect();
  EXPECT_TRUE(Eventually([&] { return !refused->Step(); }));
  EXPECT_TRUE(Eventually(
      [&] { return Value("gshard_server_connections_refused_total") == 1; }));
  for (const auto& client : clients) EXPECT_TRUE(client->Step());
  clients.pop_back();
  EXPECT_TRUE(
      Eventually([&] { return Value("gshard_server_connections") == 2; }));
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server_->address()));
  EXPECT_OK(SecureServer::CallOn(channel));
}

// Tokens are forgiven even while another call of the connection is open.
TEST_F(ConnectionWatchTest, LongTokensAreNotHeldAgainstACaller) {
  const std::string token(4000, 't');
  Start({}, WithCallers(token));
  const auto client = Connect();
  client->SendMessage(client->BeginCall(kHealthWatch), 0, 0);
  // 2 MB of tokens.
  for (int i = 0; i < 500; ++i) {
    client->SendMessage(client->BeginCall(kTranslate, token), 0, 0);
    ASSERT_TRUE(Eventually(
        [&] { return !client->Step() || client->streams_ended() == i + 1; }));
  }
  EXPECT_TRUE(
      Eventually([&] { return Value("gshard_server_held_bytes") == 0; }));
  EXPECT_EQ(Value("gshard_server_connections_ended_total"), 0);
}

TEST_F(ConnectionWatchTest, RefusedCallsDoNotEndAConnectionThatServes) {
  Start({}, WithCallers());
  const auto client = Connect();
  client->SendMessage(client->BeginCall(kHealth), 0, 0);
  EXPECT_TRUE(Eventually(
      [&] { return !client->Step() || client->streams_ended() == 1; }));
  // 3 MiB of refused messages.
  for (int i = 0; i < 100; ++i) {
    client->SendMessage(client->BeginCall(kTranslate), 30'000, 30'000);
    EXPECT_TRUE(Eventually(
        [&] { return !client->Step() || client->streams_ended() == i + 2; }));
  }
  EXPECT_FALSE(client->ended());
}

TEST_F(ConnectionWatchTest, RefusedCallsDoNotEndAConnectionWithoutOthers) {
  Start({.max_calls = 1});
  const auto holder = Connect();
  // SETTINGS_INITIAL_WINDOW_SIZE is 0: what is answered stays open.
  holder->SendBytes(
      RawHttp2::Frame(4, 0, 0, absl::string_view("\0\x4\0\0\0\0", 6)));
  holder->SendMessage(holder->BeginCall(kTranslate), 0, 0);
  EXPECT_TRUE(
      Eventually([&] { return !holder->Step() || translation_.calls() == 1; }));
  const auto client = Connect();
  // 20 MB of refused messages.
  for (int i = 0; i < 700; ++i) {
    const uint32_t call = client->BeginCall(kTranslate);
    client->SendMessage(call, 30'000, 30'000);
    ASSERT_TRUE(Eventually(
        [&] { return !client->Step() || client->status_of(call) >= 0; }));
    ASSERT_EQ(client->status_of(call), GRPC_STATUS_UNAVAILABLE);
  }
  EXPECT_FALSE(client->ended());
  EXPECT_EQ(translation_.calls(), 1);
  EXPECT_EQ(Value("gshard_server_calls_refused_total"), 700);
}

}  // namespace
}  // namespace gshard
