// TLS and caller authentication between a server and its clients.

#include "services/rpc/security/security.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/base/subprocess.h"
#include "services/checkpoint/sha256.h"
#include "services/rpc/security/certificate_file.h"
#include "tests/services/rpc/secure_server.h"
#include "tests/testing/certificates.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
constexpr auto kUnauthenticated = absl::StatusCode::kUnauthenticated;
constexpr auto kPermissionDenied = absl::StatusCode::kPermissionDenied;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class SecurityTest : public ::testing::Test {
 protected:
  SecurityOptions Member() const { return With("member"); }
  SecurityOptions Ops() const { return With("ops"); }
  SecurityOptions With(const std::string& name) const {
    return {.tls_certificate = files_.Certificate(name),
            .tls_key = files_.Key(name),
            .tls_ca = files_.Authority()};
  }
  SecurityOptions NoCertificate() const {
    return {.tls_ca = files_.Authority()};
  }
  std::string Token(const std::string& token) const {
    return files_.Write("token-" + token, token + "\n");
  }

  const Certificates files_;
};

TEST_F(SecurityTest, TheScriptSaysWhatItLacks) {
  std::filesystem::remove(files_.Path("ca.key"));
  ASSERT_OK_AND_ASSIGN(const SubprocessResult result,
                       RunSubprocess({"deploy/tls/certificates.sh",
                                      files_.Path(""), "server:other"}));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.error_output, HasSubstr("ca.key"));
}

TEST_F(SecurityTest, MutualTls) {
  SecureServer server(Member());
  EXPECT_OK(server.Call(Ops()));
  EXPECT_EQ(server.service().last().caller.name, "ops.gshard");

  EXPECT_THAT(server.Call(NoCertificate()), StatusIs(kUnavailable, _));
  EXPECT_THAT(server.Call({}), StatusIs(kUnavailable, _));
  EXPECT_EQ(server.service().calls(), 1);
}

TEST_F(SecurityTest, OtherAuthoritiesDoNotCount) {
  const Certificates others;
  SecureServer server(Member());
  SecurityOptions options = Ops();
  options.tls_certificate = others.Certificate("ops");
  options.tls_key = others.Key("ops");
  EXPECT_THAT(server.Call(options), StatusIs(kUnavailable, _));
  options = Ops();
  options.tls_ca = others.Authority();
  EXPECT_THAT(server.Call(options), StatusIs(kUnavailable, _));
}

TEST_F(SecurityTest, ClientsCheckTheServersName) {
  files_.Make({"server:elsewhere,10.9.9.9"});
  SecureServer server(With("elsewhere"));
  EXPECT_THAT(server.Call(Ops()), StatusIs(kUnavailable, _));
  SecurityOptions options = Ops();
  options.tls_peer_name = "gshard";
  EXPECT_OK(server.Call(options));
  // A client's certificate is not accepted as a server's.
  SecureServer impostor(With("ops"));
  EXPECT_THAT(impostor.Call(options), StatusIs(kUnavailable, _));
}

TEST_F(SecurityTest, CertificatesOfClientsMayBeLeftOut) {
  SecurityOptions options = Member();
  options.tls_clients = "allow";
  SecureServer server(options);
  EXPECT_OK(server.Call(NoCertificate()));
  EXPECT_EQ(server.service().last().caller.name, "anonymous");
  EXPECT_OK(server.Call(Ops()));
  EXPECT_EQ(server.service().last().caller.name, "ops.gshard");
  const Certificates others;
  SecurityOptions stranger = Ops();
  stranger.tls_certificate = others.Certificate("ops");
  stranger.tls_key = others.Key("ops");
  EXPECT_THAT(server.Call(stranger), StatusIs(kUnavailable, _));
}

TEST_F(SecurityTest, RolesComeFromTokensAndCertificates) {
  SecurityOptions options = Member();
  options.tls_clients = "allow";
  options.auth_file = files_.Write(
      "callers", absl::StrCat("shop token ", Sha256("sesame"), " translate\n",
                              "night token ", Sha256("moon"), " train,admin\n",
                              "ops certificate ops.gshard translate\n"));
  SecureServer server(options);
  SecurityOptions client = NoCertificate();
  EXPECT_THAT(server.Call(client),
              StatusIs(kUnauthenticated, AllOf(HasSubstr("bearer token"),
                                               HasSubstr("(request "))));
  client.token_file = Token("sesame");
  EXPECT_OK(server.Call(client));
  EXPECT_EQ(server.service().last().caller.name, "shop");
  EXPECT_FALSE(server.service().shows_authorization());
  client.token_file = Token("moon");
  EXPECT_THAT(server.Call(client),
              StatusIs(kPermissionDenied,
                       AllOf(HasSubstr("translate"), HasSubstr("'night'"))));
  client.token_file = Token("guess");
  EXPECT_THAT(server.Call(client),
              StatusIs(kUnauthenticated, Not(HasSubstr("guess"))));
  EXPECT_OK(server.Call(Ops()));
  EXPECT_EQ(server.service().last().caller.name, "ops");
  EXPECT_THAT(server.Call(Member()), StatusIs(kUnauthenticated, _));
  EXPECT_EQ(server.service().calls(), 2);
}

TEST_F(SecurityTest, CallersAreKnownOnUnixSocketsToo) {
  const std::string callers = files_.Write(
      "callers", absl::StrCat("shop token ", Sha256("sesame"), " translate\n"));
  SecureServer server({.auth_file = callers}, "unix:" + files_.Path("socket"));
  EXPECT_THAT(server.Call({}), StatusIs(kUnauthenticated, _));
  EXPECT_OK(server.Call({.token_file = Token("sesame")}));
}

TEST_F(SecurityTest, HealthIsOpenAndUnknownMethodsAreNot) {
  const std::string callers = files_.Write("callers", "");
  SecureServer server({.auth_file = callers});
  ASSERT_OK_AND_ASSIGN(const auto channel, server.Channel({}));
  const auto call = [&](const char* method) {
    grpc::TemplatedGenericStub<v1::TranslateResponse, v1::TranslateResponse>
        stub(channel);
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::minutes(1));
    v1::TranslateResponse empty;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, method, {}, &empty, &empty,
                   [&](grpc::Status status) { done.set_value(status); });
    return FromGrpcStatus(done.get_future().get());
  };
  EXPECT_OK(call("/grpc.health.v1.Health/Check"));
  for (const char* method :
       {"/grpc.health.v1.Health/List", "/gshard.v1.TranslationService/Guess",
        "/gshard.v1.TranslationService/Translate",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    EXPECT_THAT(call(method), StatusIs(kUnauthenticated, _)) << method;
  }
}

TEST_F(SecurityTest, ChangedCallersCountAtOnce) {
  const auto line = [](const char* token) {
    return absl::StrCat("shop token ", Sha256(token), " translate\n");
  };
  SecureServer server({.auth_file = files_.Write("callers", line("old"))});
  const SecurityOptions old_token{.token_file = Token("old")};
  const SecurityOptions new_token{.token_file = Token("new")};
  EXPECT_OK(server.Call(old_token));
  EXPECT_THAT(server.Call(new_token), StatusIs(kUnauthenticated, _));

  files_.Write("callers", line("new"));
  EXPECT_TRUE(Eventually([&] { return server.Call(new_token).ok(); }));
  EXPECT_THAT(server.Call(old_token), StatusIs(kUnauthenticated, _));

  files_.Write("callers", "nonsense\n");
  server.security().Reload();
  EXPECT_OK(server.Call(new_token));
  std::filesystem::remove(files_.Path("callers"));
  server.security().Reload();
  EXPECT_OK(server.Call(new_token));
}

TEST_F(SecurityTest, AFileThatCouldNotBeReadIsTriedAgain) {
  const std::string line =
      absl::StrCat("shop token ", Sha256("old"), " translate\n");
  const std::string callers = files_.Write("callers", line);
  SecureServer server({.auth_file = callers});
  const SecurityOptions old_token{.token_file = Token("old")};
  EXPECT_OK(server.Call(old_token));

  files_.Write("callers", std::string(line.size(), '?'));
  ::testing::internal::CaptureStderr();
  server.security().Reload();
  server.security().Reload();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("is not used"), log.rfind("is not used")) << log;
  EXPECT_OK(server.Call(old_token));

  // It becomes readable, without a change that its stamp would show.
  const auto time = std::filesystem::last_write_time(callers);
  std::ofstream(callers) << absl::StrCat(
      "# ", std::string(line.size() - 3, '-'), "\n");
  std::filesystem::last_write_time(callers, time);
  EXPECT_TRUE(Eventually([&] { return !server.Call(old_token).ok(); }));
}

TEST_F(SecurityTest, ANewTokenIsSentOnTheOldConnection) {
  const std::string callers = files_.Write(
      "callers", absl::StrCat("a token ", Sha256("one"), " translate\n",
                              "b token ", Sha256("two"), " translate\n"));
  SecureServer server({.auth_file = callers});
  const std::string token = files_.Write("token", "one");
  ASSERT_OK_AND_ASSIGN(const auto channel,
                       server.Channel({.token_file = token}));
  EXPECT_OK(SecureServer::CallOn(channel));
  EXPECT_EQ(server.service().last().caller.name, "a");
  files_.Write("token", "two");
  EXPECT_TRUE(Eventually([&] {
    return SecureServer::CallOn(channel).ok() &&
           server.service().last().caller.name == "b";
  }));
}

TEST_F(SecurityTest, BadFilesAreToldAtTheStart) {
  const auto create = [](const SecurityOptions& options) {
    return Security::CreateForServer(options, "127.0.0.1:0").status();
  };
  SecurityOptions options = Member();
  options.tls_key = files_.Key("ops");
  EXPECT_THAT(
      create(options),
      StatusIs(kInvalid, AllOf(HasSubstr("ops.key"), HasSubstr("member.pem"))));
  options.tls_key = files_.Authority();
  EXPECT_THAT(create(options), StatusIs(kInvalid, HasSubstr("private key")));
  options = Member();
  options.tls_certificate = files_.Key("member");
  EXPECT_THAT(create(options), StatusIs(kInvalid, HasSubstr("certificate")));
  options = Member();
  options.tls_ca = "/absent";
  EXPECT_THAT(create(options),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/absent")));
  EXPECT_THAT(
      create({.auth_file = files_.Write("callers", "a b\n")}),
      StatusIs(kInvalid, AllOf(HasSubstr("callers"), HasSubstr("line 1"))));
  EXPECT_THAT(create({.token_file = files_.Write("token", "two words")}),
              StatusIs(kInvalid, Not(HasSubstr("words\""))));
}

TEST_F(SecurityTest, SecretsOfOthersAreWarnedOf) {
  std::filesystem::permissions(files_.Key("member"),
                               std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  ::testing::internal::CaptureStderr();
  ASSERT_OK_AND_ASSIGN(const auto open,
                       Security::CreateForServer(Member(), "127.0.0.1:0"));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("can be read by other users"), HasSubstr("member.key")));
  ::testing::internal::CaptureStderr();
  ASSERT_OK_AND_ASSIGN(const auto closed, Security::CreateForClient(Ops()));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              Not(HasSubstr("WARNING")));
}

TEST_F(SecurityTest, TheCertificatesEndIsMeasuredAndWarnedOf) {
  files_.Make({"--days", "3", "server:short"});
  ::testing::internal::CaptureStderr();
  Metrics metrics("test", "1");
  ASSERT_OK_AND_ASSIGN(const auto security,
                       Security::CreateForServer(With("short"), "127.0.0.1:0"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the certificate expires soon"));
  security->AddMetrics(metrics);
  const std::string text = metrics.Serialize();
  const std::string name = "\ngshard_tls_certificate_remaining_seconds ";
  ASSERT_THAT(text, HasSubstr(name));
  const double left = std::stod(text.substr(text.find(name) + name.size()));
  EXPECT_GT(left, 2.9 * 86400);
  EXPECT_LE(left, 3 * 86400);
}

}  // namespace
}  // namespace gshard
