#include "services/rpc/client/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/rpc/server/server.h"
#include "tests/services/rpc/secure_server.h"
#include "tests/testing/certificates.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kService = v1::TranslationService::service_full_name();

ProcessOptions Asking(const std::string& probe, const std::string& address) {
  ProcessOptions options;
  options.probe = probe;
  options.listen = address;
  return options;
}

TEST(ProbeTest, TellsLifeFromReadiness) {
  InfoService service;
  ServerShell server({.address = "127.0.0.1:0"});
  server.AddService(&service, kService);
  ASSERT_OK(server.Start());
  const auto probe = [&](const std::string& what) {
    return Probe(Asking(what, server.address()), kService);
  };
  const auto kNot = StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("answers, but is not"));
  EXPECT_OK(probe("live"));
  EXPECT_THAT(probe("joined"), kNot);
  EXPECT_THAT(probe("ready"), kNot);

  server.SetReady(true);
  server.SetServiceReady(kService, false);
  EXPECT_OK(probe("live"));
  EXPECT_OK(probe("joined"));
  EXPECT_THAT(probe("ready"), kNot);

  server.SetServiceReady(kService, true);
  EXPECT_OK(probe("ready"));

  server.Drain(std::chrono::milliseconds(0));
  EXPECT_THAT(probe("live"), StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr(server.address())));
}

TEST(ProbeTest, NeedsAnAddressThatCanBeCalled) {
  EXPECT_THAT(Probe(Asking("live", "127.0.0.1:0"), kService),
              StatusIs(absl::StatusCode::kInvalidArgument, _));
}

// With only the server's flags, as in a container, the probe shows the server's
// certificate as its own.
TEST(ProbeTest, IsAClientByTheServersCertificate) {
  const Certificates files;
  SecurityOptions security;
  security.tls_certificate = files.Certificate("member");
  security.tls_key = files.Key("member");
  security.tls_ca = files.Authority();
  security.auth_file =
      files.Write("callers", "ops token " + std::string(64, '0') + " admin\n");
  SecureServer server(security);
  ProcessOptions options = Asking("live", server.address());
  EXPECT_THAT(Probe(options, kService),
              StatusIs(absl::StatusCode::kUnavailable, _));
  options.security = security;
  EXPECT_OK(Probe(options, kService));
}

// A key that was replaced by a wrong one is no reason to end what still runs.
TEST(ProbeTest, IsNoVictimOfAWrongKey) {
  const Certificates files;
  SecurityOptions security;
  security.tls_certificate = files.Certificate("member");
  security.tls_key = files.Key("member");
  security.tls_ca = files.Authority();
  SecureServer server(security);
  std::filesystem::copy_file(files.Key("ops"), files.Key("member"),
                             std::filesystem::copy_options::overwrite_existing);
  ProcessOptions options = Asking("live", server.address());
  options.security = security;
  EXPECT_OK(Probe(options, kService));
  options.probe = "joined";
  EXPECT_THAT(Probe(options, kService),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected the key of the certificate")));
}

// Nor is a certificate that has expired: connections go on, and others are to
// see it, as readiness does.
TEST(ProbeTest, IsNoVictimOfAnExpiredCertificate) {
  const Certificates files;
  SecurityOptions security;
  security.tls_certificate = files.Certificate("member");
  security.tls_key = files.Key("member");
  security.tls_ca = files.Authority();
  SecureServer server(security);
  ProcessOptions options = Asking("live", server.address());
  options.security = security;
  const auto expect = [&](const std::string& why) {
    options.probe = "live";
    EXPECT_OK(Probe(options, kService));
    options.probe = "ready";
    EXPECT_THAT(Probe(options, kService),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("member.pem"), HasSubstr(why))));
  };
  files.Make({"--days", "0", "server:member,127.0.0.1"});
  expect("certificate has expired");
  files.Make({"server:member,127.0.0.1"});
  // All members' authorities, replaced before their certificates.
  const Certificates others;
  std::filesystem::copy_file(others.Authority(), files.Authority(),
                             std::filesystem::copy_options::overwrite_existing);
  expect("unable to get local issuer certificate");
}

// What it calls others with is not what it serves with.
TEST(ProbeTest, AsksAServerWithoutTlsWithout) {
  const Certificates files;
  SecureServer server({});
  ProcessOptions options = Asking("live", server.address());
  options.security.tls_ca = files.Authority();
  options.security.token_file = files.Path("absent");
  EXPECT_OK(Probe(options, kService));
}

// A server that asks clients for no certificate may have one of an authority,
// and for a name, that the probe does not know.
TEST(ProbeTest, NeedNotKnowWhoSignedAPublicServersCertificate) {
  const Certificates files({"server:translate.example.com"});
  const Certificates others;
  SecurityOptions security;
  security.tls_certificate = files.Certificate("translate.example.com");
  security.tls_key = files.Key("translate.example.com");
  security.tls_clients = "ignore";
  security.auth_file =
      files.Write("callers", "ops token " + std::string(64, '0') + " admin\n");
  for (const std::string& authority : {std::string(), others.Authority()}) {
    security.tls_ca = authority;
    SecureServer server(security);
    ProcessOptions options = Asking("live", server.address());
    options.security = security;
    // The token is for others; it could not be read.
    options.security.token_file = files.Path("absent");
    EXPECT_OK(Probe(options, kService));
    options.security.tls_certificate.clear();
    options.security.tls_key.clear();
    options.security.token_file.clear();
    EXPECT_THAT(Probe(options, kService),
                StatusIs(absl::StatusCode::kUnavailable, _));
  }
}

}  // namespace
}  // namespace gshard
