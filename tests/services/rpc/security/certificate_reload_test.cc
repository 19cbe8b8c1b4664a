// Certificates replaced while a server and its client run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/server/server.h"
#include "services/rpc/server/server_stream.h"
#include "tests/services/rpc/secure_server.h"
#include "tests/testing/certificates.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Answers each message of a stream.
class EchoHandler final : public StreamHandler<v1::JoinRequest> {
 public:
  explicit EchoHandler(std::shared_ptr<StreamSender<v1::JoinResponse>> sender)
      : sender_(std::move(sender)) {}
  void OnMessage(v1::JoinRequest) override { (void)sender_->Send({}); }
  void OnEnd(const absl::Status&) override {}

 private:
  const std::shared_ptr<StreamSender<v1::JoinResponse>> sender_;
};

class EchoService final
    : public v1::CoordinatorService::WithRawCallbackMethod_Join<
          v1::CoordinatorService::Service> {
 public:
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Join(
      grpc::CallbackServerContext* context) override {
    return ServeStream<v1::JoinRequest, v1::JoinResponse>(
        context, [](auto sender) {
          return std::make_unique<EchoHandler>(std::move(sender));
        });
  }
};

absl::Status Serve(std::shared_ptr<const Security> security,
                   EchoService& service, ServerShell& server) {
  server.UseSecurity(std::move(security));
  server.AddService(&service, v1::CoordinatorService::service_full_name());
  return server.Start();
}

// A client's stream, kept open.
class OpenEcho {
 public:
  explicit OpenEcho(std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)) {
    sender_ = OpenStream<v1::JoinRequest, v1::JoinResponse>(
        channel_, "/gshard.v1.CoordinatorService/Join",
        [this](auto) { return std::make_unique<Answers>(this); });
  }
  ~OpenEcho() {
    sender_->Cancel();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }

  // Sends a message and returns whether it is answered.
  bool Answered() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int before = answers_;
    lock.unlock();
    if (!sender_->Send({}).ok()) return false;
    lock.lock();
    changed_.wait(lock, [&] { return ended_ || answers_ > before; });
    return answers_ > before;
  }

 private:
  class Answers final : public StreamHandler<v1::JoinResponse> {
   public:
    explicit Answers(OpenEcho* echo) : echo_(echo) {}
    void OnMessage(v1::JoinResponse) override { Add(1, false); }
    void OnEnd(const absl::Status&) override { Add(0, true); }

   private:
    void Add(int answers, bool ended) {
      std::lock_guard<std::mutex> lock(echo_->mutex_);
      echo_->answers_ += answers;
      echo_->ended_ = ended;
      echo_->changed_.notify_all();
    }
    OpenEcho* const echo_;
  };

  const std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<StreamSender<v1::JoinRequest>> sender_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int answers_ = 0;
  bool ended_ = false;
};

SecurityOptions With(const Certificates& files, const std::string& name) {
  return {.tls_certificate = files.Certificate(name),
          .tls_key = files.Key(name),
          .tls_ca = files.Authority()};
}

// Replaces the files of `to` with those of `from`.
void Replace(const Certificates& to, const Certificates& from,
             const std::vector<std::string>& replaced = {"ca.pem", "member.key",
                                                         "member.pem"}) {
  for (const std::string& file : replaced) {
    std::filesystem::copy_file(from.Path(file), to.Path("new"));
    std::filesystem::rename(to.Path("new"), to.Path(file));
  }
}

TEST(CertificateReloadTest, NewConnectionsUseNewFilesAndOldStreamsGoOn) {
  const Certificates files;   // the server's; replaced
  const Certificates fresh;   // of another authority
  const Certificates former;  // a copy of the first files
  Replace(former, files);
  files.Make({"client:ops"});

  ASSERT_OK_AND_ASSIGN(
      const auto security,
      Security::CreateForServer(With(files, "member"), "127.0.0.1:0"));
  EchoService service;
  ServerShell server({.address = "127.0.0.1:0"});
  ASSERT_OK(Serve(security, service, server));
  const auto channel = [&](const SecurityOptions& options) {
    return CreateChannel(server.address(),
                         {.security = *Security::CreateForClient(options)})
        .value();
  };
  // Member certificates, which serve as client and server certificates.
  const SecurityOptions old_client = With(former, "member");
  const SecurityOptions new_client = With(fresh, "member");
  OpenEcho old_stream(channel(old_client));
  ASSERT_TRUE(old_stream.Answered());
  EXPECT_FALSE(OpenEcho(channel(new_client)).Answered());

  Replace(files, fresh);
  EXPECT_TRUE(
      Eventually([&] { return OpenEcho(channel(new_client)).Answered(); }));
  EXPECT_FALSE(OpenEcho(channel(old_client)).Answered());
  EXPECT_TRUE(old_stream.Answered());
  server.Drain(std::chrono::milliseconds(0));
}

// Damaged files are reported by name and do not disturb open streams, whatever
// new connections find; repairing the files suffices, without a restart.
TEST(CertificateReloadTest, DamagedFilesAreNamedAndNeedOnlyBeMended) {
  const Certificates files;  // the server's; damaged, then replaced
  const Certificates fresh;
  const Certificates former;
  Replace(former, files);
  ASSERT_OK_AND_ASSIGN(
      const auto security,
      Security::CreateForServer(With(files, "member"), "127.0.0.1:0"));
  EchoService service;
  ServerShell server({.address = "127.0.0.1:0"});
  ASSERT_OK(Serve(security, service, server));
  const auto channel = [&](const Certificates& shown) {
    return CreateChannel(
               server.address(),
               {.security = *Security::CreateForClient(With(shown, "member"))})
        .value();
  };
  OpenEcho open(channel(former));
  ASSERT_TRUE(open.Answered());

  ::testing::internal::CaptureStderr();
  files.Write("member.pem", "nonsense\n");
  security->Reload();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("its former state stays in force"),
                    HasSubstr("member.pem")));
  EXPECT_TRUE(open.Answered());

  Replace(files, fresh);
  EXPECT_TRUE(Eventually([&] { return OpenEcho(channel(fresh)).Answered(); }));
  EXPECT_TRUE(open.Answered());
  server.Drain(std::chrono::milliseconds(0));
}

// A key that is written some polls after its certificate, and so makes the pair
// whole, is noticed.
TEST(CertificateReloadTest, AKeyMayComeLongAfterItsCertificate) {
  const Certificates files;
  const Certificates fresh;
  ASSERT_OK_AND_ASSIGN(const auto security,
                       Security::CreateForClient(With(files, "member")));
  // The log of what happens when `file` is replaced.
  const auto replace = [&](const char* file) {
    ::testing::internal::CaptureStderr();
    Replace(files, fresh, {file});
    security->Reload();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(replace("member.pem"),
              AllOf(HasSubstr("its former state stays in force"),
                    HasSubstr("expected the key of the certificate")));
  EXPECT_THAT(replace("member.key"), HasSubstr("read the certificate"));
}

TEST(CertificateReloadTest, DamagedAuthoritiesAreNamed) {
  const Certificates files;
  ASSERT_OK_AND_ASSIGN(
      const auto server,
      Security::CreateForServer(With(files, "member"), "127.0.0.1:0"));
  // A client without a certificate watches nothing else.
  ASSERT_OK_AND_ASSIGN(const auto client, Security::CreateForClient(
                                              {.tls_ca = files.Authority()}));
  ::testing::internal::CaptureStderr();
  files.Write("ca.pem", "nonsense\n");
  server->Reload();
  client->Reload();
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t first = log.find("ca.pem: expected a certificate");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_NE(log.find("ca.pem: expected a certificate", first + 1),
            std::string::npos)
      << log;
  EXPECT_THAT(log, HasSubstr("a changed file is not used"));
}

// A client picks up replaced files, too, and its channel connects with them.
TEST(CertificateReloadTest, AChannelConnectsAgainWithNewFiles) {
  const Certificates files;
  const Certificates fresh;
  SecureServer server(With(fresh, "member"));
  ASSERT_OK_AND_ASSIGN(const auto channel,
                       server.Channel(With(files, "member")));
  EXPECT_THAT(SecureServer::CallOn(channel),
              StatusIs(absl::StatusCode::kUnavailable, _));
  Replace(files, fresh);
  EXPECT_TRUE(Eventually([&] { return SecureServer::CallOn(channel).ok(); }));
}

}  // namespace
}  // namespace gshard
