#include "services/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A connection to a server on the loopback address. `receive_bytes` limits what
// the kernel receives ahead of reads; 0 for the usual amount.
int ConnectTo(const std::string& address, int receive_bytes = 0) {
  const int file = socket(AF_INET, SOCK_STREAM, 0);
  if (receive_bytes > 0) {
    EXPECT_EQ(setsockopt(file, SOL_SOCKET, SO_RCVBUF, &receive_bytes,
                         sizeof(receive_bytes)),
              0);
  }
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_port = htons(
      static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(file, reinterpret_cast<sockaddr*>(&target), sizeof(target)),
            0);
  return file;
}

// The whole HTTP answer of a server on the loopback address, empty if none
// comes in time. `headers` are whole lines.
std::string Get(const std::string& address, const std::string& path,
                const std::string& headers = "") {
  const int file = ConnectTo(address);
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};
  EXPECT_EQ(
      setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)),
      0);
  const std::string request = absl::StrCat(
      "GET ", path, " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n", headers,
      "\r\n");
  EXPECT_EQ(write(file, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(file, buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, n);
  }
  close(file);
  return answer;
}

TEST(MetricsServerTest, ServesMetricsOnAFreePort) {
  Metrics metrics("router", "1");
  const Counter steps = metrics.AddCounter("gshard_steps_total", "Steps.");
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MetricsServer> server,
                       MetricsServer::Start("127.0.0.1:0", metrics));
  EXPECT_THAT(server->address(),
              AllOf(StartsWith("127.0.0.1:"), Not(HasSubstr(":0"))));
  steps.Increment(5);
  EXPECT_THAT(
      Get(server->address(), "/metrics"),
      AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\ngshard_steps_total 5\n")));
  EXPECT_THAT(Get(server->address(), "/"), StartsWith("HTTP/1.1 404"));

  // The port is in use now.
  EXPECT_THAT(MetricsServer::Start(server->address(), metrics),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(server->address()),
                             HasSubstr("Address already in use"))));
}

TEST(MetricsServerTest, AnswersInTheFormatThatIsAskedFor) {
  Metrics metrics("router", "1");
  metrics.AddHistogram("gshard_wait_seconds", "Waits.", {1})
      .Observe(0.5, std::string(32, 'a'));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MetricsServer> server,
                       MetricsServer::Start("127.0.0.1:0", metrics));
  const std::string text =
      "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
  for (const char* accept : {"", "Accept: */*\r\n"}) {
    EXPECT_THAT(Get(server->address(), "/metrics", accept),
                AllOf(HasSubstr(text), HasSubstr("\n# TYPE gshard_build_info"),
                      Not(HasSubstr("# EOF")), Not(HasSubstr("trace_id"))));
  }
  EXPECT_THAT(
      Get(server->address(), "/metrics",
          "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n"),
      AllOf(StartsWith("HTTP/1.1 200"),
            HasSubstr("\r\nContent-Type: application/openmetrics-text; "
                      "version=1.0.0; charset=utf-8\r\n"),
            HasSubstr("# {trace_id=\"aaaa"), EndsWith("\n# EOF\n")));
}

TEST(MetricsServerTest, DoesNotPackForWhoRefusesIt) {
  const Metrics metrics("router", "1");
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MetricsServer> server,
                       MetricsServer::Start("127.0.0.1:0", metrics));
  EXPECT_THAT(
      Get(server->address(), "/metrics", "Accept-Encoding: gzip;q=0\r\n"),
      AllOf(Not(HasSubstr("Content-Encoding")), HasSubstr("gshard_build")));
}

TEST(MetricsServerTest, PacksWhatMayBePacked) {
  const Metrics metrics("router", "1");
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MetricsServer> server,
                       MetricsServer::Start("127.0.0.1:0", metrics));
  const std::string answer =
      Get(server->address(), "/metrics", "Accept-Encoding: gzip\r\n");
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Encoding: gzip\r\n"));
  const size_t head = answer.find("\r\n\r\n") + 4;
  EXPECT_THAT(answer, HasSubstr(absl::StrCat("\r\nContent-Length: ",
                                             answer.size() - head, "\r\n")));
  std::string text(1 << 20, '\0');
  z_stream stream = {};
  ASSERT_EQ(inflateInit2(&stream, MAX_WBITS + 16), Z_OK);
  stream.next_in =
      reinterpret_cast<Bytef*>(const_cast<char*>(answer.data() + head));
  stream.avail_in = static_cast<uInt>(answer.size() - head);
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  EXPECT_THAT(text, HasSubstr("\ngshard_build_info{role=\"router\""));
}

// The server has closed the connection long before this client has read the
// last of the answer.
TEST(MetricsServerTest, SlowReadersGetTheWholeAnswer) {
  Metrics metrics("router", "1");
  const CounterFamily family =
      metrics.AddCounterFamily("gshard_big_total", "Big.", {"text"});
  for (int i = 0; i < 2'000; ++i) {
    family.With({absl::StrCat(std::string(1'000, 'a'), i)}).Increment();
  }
  const std::string body = metrics.Serialize();
  ASSERT_GT(body.size(), 1 << 20);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MetricsServer> server,
                       MetricsServer::Start("127.0.0.1:0", metrics));
  const int file = ConnectTo(server->address(), /*receive_bytes=*/4096);
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
  ASSERT_EQ(write(file, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[16 << 10];
  ssize_t n = 0;
  while ((n = read(file, buffer, sizeof(buffer))) > 0) {
    answer.append(buffer, n);
    // The client is slow; the test does not depend on how slow.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(n, 0) << strerror(errno);
  close(file);
  const size_t head = answer.find("\r\n\r\n") + 4;
  EXPECT_THAT(answer.substr(0, head),
              HasSubstr(absl::StrCat(
                  "\r\nContent-Length: ", answer.size() - head, "\r\n")));
}

TEST(MetricsServerTest, SilentConnectionsDoNotHoldItUpForLong) {
  const Metrics metrics("router", "1");
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MetricsServer> server,
                       MetricsServer::Start("127.0.0.1:0", metrics));
  std::vector<int> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(ConnectTo(server->address()));
  EXPECT_THAT(Get(server->address(), "/metrics"), StartsWith("HTTP/1.1 200"));
  for (const int file : silent) close(file);
}

TEST(MetricsServerTest, SaysWhyItCannotServe) {
  const Metrics metrics("router", "1");
  const auto refusal = [&](const char* address) {
    return std::string(
        MetricsServer::Start(address, metrics).status().message());
  };
  // Reserved for documentation, so no interface has this address.
  EXPECT_THAT(refusal("192.0.2.1:9100"),
              EndsWith(": cannot bind to 192.0.2.1:9100: 99 (Cannot assign "
                       "requested address)"));
  EXPECT_THAT(refusal("here:9100"),
              HasSubstr("invalid port spec (entry 1). Expecting list of: "
                        "[IP_ADDRESS:]PORT"));
}

TEST(MetricsServerTest, OutlivesItsMetrics) {
  auto metrics = std::make_unique<Metrics>("router", "1");
  metrics->AddCallbackGauge("gshard_age_seconds", "Age.", [] { return 1.0; });
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MetricsServer> server,
                       MetricsServer::Start("127.0.0.1:0", *metrics));
  metrics.reset();
  EXPECT_THAT(
      Get(server->address(), "/metrics"),
      AllOf(StartsWith("HTTP/1.1 200"), Not(HasSubstr("gshard_age_seconds"))));
}

TEST(MetricsServerTest, RefusesWhatIsNoAddress) {
  const Metrics metrics("router", "1");
  for (const char* address : {"", "9100", ":9100", "host:", "127.0.0.1:x",
                              "127.0.0.1:70000", "127.0.0.1:1,127.0.0.1:2"}) {
    EXPECT_THAT(MetricsServer::Start(address, metrics),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("\"", address, "\""))));
  }
}

}  // namespace
}  // namespace gshard
