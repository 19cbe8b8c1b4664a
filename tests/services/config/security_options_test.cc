#include "services/config/security_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const char* NoEnvironment(const char*) { return nullptr; }

SecurityOptions MutualTls() {
  return {.tls_certificate = "cert", .tls_key = "key", .tls_ca = "ca"};
}

TEST(SecurityOptionsTest, AreReadFromFlags) {
  SecurityOptions options;
  Flags flags("server", "Serves.");
  AddServerSecurityFlags(flags, &options);
  ASSERT_OK(flags.Parse(
      {"--tls_certificate=c", "--tls_key=k", "--tls_ca=a", "--tls_peer_name=p",
       "--tls_clients=allow", "--auth_file=f", "--token_file=t", "--insecure"},
      NoEnvironment));
  EXPECT_EQ(options, (SecurityOptions{.tls_certificate = "c",
                                      .tls_key = "k",
                                      .tls_ca = "a",
                                      .tls_peer_name = "p",
                                      .tls_clients = "allow",
                                      .auth_file = "f",
                                      .token_file = "t",
                                      .insecure = true}));
  EXPECT_THAT(flags.Parse({"--tls_clients=maybe"}, NoEnvironment),
              StatusIs(kInvalid, HasSubstr("--tls_clients")));
}

TEST(SecurityOptionsTest, TokensOfClientsComeFromTheEnvironmentToo) {
  SecurityOptions options;
  Flags flags("client", "Calls.");
  AddClientSecurityFlags(flags, &options);
  ASSERT_OK(flags.Parse({}, [](const char* name) {
    return std::string(name) == "GSHARD_TOKEN_FILE" ? "/token" : nullptr;
  }));
  EXPECT_EQ(options.token_file, "/token");
}

TEST(SecurityOptionsTest, KnowsWhatOnlyThisMachineReaches) {
  for (const char* local : {"", "unix:/a", "unix:a", "localhost:1", "[::1]:1",
                            "127.0.0.1:1", "127.1.2.3:1"}) {
    EXPECT_TRUE(IsLocalAddress(local)) << local;
  }
  for (const char* remote :
       {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host:1", "127.example.org:1",
        "localhost.example.org:1", "[::2]:1", "128.0.0.1:1"}) {
    EXPECT_FALSE(IsLocalAddress(remote)) << remote;
  }
}

// Gloo and NCCL, which accept any connection, need --insecure for addresses
// other than this machine's.
TEST(SecurityOptionsTest, OpenExchangesStayOnThisMachine) {
  for (const char* local : {"localhost", "127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_OK(ValidateOpenExchange({}, "gloo", local));
  }
  for (const char* remote : {"", "0.0.0.0", "::", "10.0.0.7", "router-1",
                             "localhost.example.org", "127.example.org"}) {
    // TLS and tokens protect only gshard's own servers, so they do not help.
    SecurityOptions options = MutualTls();
    options.auth_file = "/callers";
    EXPECT_THAT(ValidateOpenExchange(options, "gloo", remote),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("gloo"), HasSubstr("--insecure"))))
        << remote;
    options.insecure = true;
    EXPECT_OK(ValidateOpenExchange(options, "gloo", remote));
  }
}

TEST(SecurityOptionsTest, TlsIsForTcp) {
  EXPECT_TRUE(ServesTls(MutualTls(), "127.0.0.1:1"));
  EXPECT_TRUE(CallsWithTls(MutualTls(), "127.0.0.1:1"));
  EXPECT_FALSE(ServesTls(MutualTls(), "unix:/a"));
  EXPECT_FALSE(CallsWithTls(MutualTls(), "unix:/a"));
  EXPECT_FALSE(ServesTls({}, "127.0.0.1:1"));
  EXPECT_FALSE(CallsWithTls({}, "host:1"));
}

TEST(SecurityOptionsTest, WithoutTlsOnlyThisMachineIsServed) {
  for (const char* local : {"", "unix:/a", "127.0.0.1:0", "localhost:7000"}) {
    EXPECT_OK(ValidateServerSecurity({}, local));
  }
  for (const char* remote : {"0.0.0.0:7000", "[::]:7000", "router-1:7000"}) {
    EXPECT_THAT(ValidateServerSecurity({}, remote),
                StatusIs(kInvalid, AllOf(HasSubstr(remote),
                                         HasSubstr("--tls_certificate"),
                                         HasSubstr("--insecure"))));
    EXPECT_OK(ValidateServerSecurity({.insecure = true}, remote));
    EXPECT_OK(ValidateServerSecurity(MutualTls(), remote));
  }
}

TEST(SecurityOptionsTest, UnknownCallersOfOtherMachinesAreNotServed) {
  SecurityOptions options = MutualTls();
  for (const char* clients : {"allow", "ignore"}) {
    options.tls_clients = clients;
    options.auth_file = "";
    EXPECT_THAT(ValidateServerSecurity(options, "0.0.0.0:1"),
                StatusIs(kInvalid, HasSubstr("--auth_file")));
    options.auth_file = "file";
    EXPECT_OK(ValidateServerSecurity(options, "0.0.0.0:1"));
  }
}

TEST(SecurityOptionsTest, FilesBelongTogether) {
  EXPECT_THAT(ValidateServerSecurity({.tls_certificate = "c"}, "unix:/a"),
              StatusIs(kInvalid, HasSubstr("--tls_key")));
  EXPECT_THAT(ValidateClientSecurity({.tls_key = "k"}, "unix:/a"),
              StatusIs(kInvalid, HasSubstr("--tls_certificate")));
  SecurityOptions options = {.tls_certificate = "c", .tls_key = "k"};
  EXPECT_THAT(ValidateServerSecurity(options, "unix:/a"),
              StatusIs(kInvalid, HasSubstr("--tls_ca")));
  options.tls_clients = "ignore";
  EXPECT_OK(ValidateServerSecurity(options, "unix:/a"));
}

TEST(SecurityOptionsTest, TokensDoNotTravelUnencrypted) {
  SecurityOptions options = {.token_file = "t"};
  EXPECT_OK(ValidateClientSecurity(options, "unix:/a"));
  EXPECT_OK(ValidateClientSecurity(options, "127.0.0.1:1"));
  EXPECT_THAT(ValidateClientSecurity(options, "router:1"),
              StatusIs(kInvalid, AllOf(HasSubstr("--token_file"),
                                       HasSubstr("router:1"))));
  options.tls_ca = "ca";
  EXPECT_OK(ValidateClientSecurity(options, "router:1"));
  options.tls_ca = "";
  options.insecure = true;
  EXPECT_OK(ValidateClientSecurity(options, "router:1"));
}

}  // namespace
}  // namespace gshard
