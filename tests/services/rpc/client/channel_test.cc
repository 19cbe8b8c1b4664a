#include "services/rpc/client/channel.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(AddressTest, TakesHostsAndSockets) {
  for (const char* address :
       {"localhost:1", "10.0.0.1:65535", "[::1]:7400", "worker-0.workers:7400",
        "unix:/tmp/a", "unix:relative", "unix:///tmp/a"}) {
    SCOPED_TRACE(address);
    EXPECT_OK(ValidateAddress(address));
  }
  EXPECT_OK(ValidateAddress("localhost:0", /*lowest_port=*/0));
  EXPECT_OK(ValidateAddress("unix:" + std::string(107, 'p')));
}

TEST(AddressTest, RefusesTheRest) {
  const struct {
    std::string address;
    const char* why;
  } cases[] = {
      {"", "no port"},
      {"localhost", "no port"},
      {":7400", "no host"},
      {"localhost:", "port must be a number"},
      {"localhost:0", "from 1 to 65535"},
      {"localhost:65536", "from 1 to 65535"},
      {"localhost:-1", "port must be a number"},
      {"localhost: 1", "port must be a number"},
      {"localhost:99999999999", "port must be a number"},
      {"::1:7400", "brackets"},
      {"unix:", "path is empty"},
      {"unix:" + std::string(108, 'p'), "108 bytes"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ValidateAddress(c.address),
                StatusIs(kInvalid, HasSubstr(c.why)))
        << c.address;
    EXPECT_THAT(CreateChannel(c.address), StatusIs(kInvalid, HasSubstr(c.why)));
  }
}

TEST(ChannelTest, LinesOfGrpcAreLogged) {
  KeepGrpcRunning();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) gpr_log(GPR_ERROR, "Handshake %d failed", i);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr("\"severity\":\"WARNING\",\"message\":\"gRPC "
                               "reports\",\"text\":\"Handshake 0 failed\","
                               "\"lines_left_out\":0}\n"));
  // A new second may have begun meanwhile, more than once on a busy machine.
  EXPECT_LT(std::count(lines.begin(), lines.end(), '\n'), 500);
}

TEST(ChannelTest, ChecksItsLimits) {
  ChannelOptions options;
  options.max_message_bytes = 1023;
  EXPECT_THAT(CreateChannel("localhost:1", options),
              StatusIs(kInvalid, HasSubstr("got 1023")));
  options.max_message_bytes = size_t{1} << 31;
  EXPECT_THAT(CreateChannel("localhost:1", options),
              StatusIs(kInvalid, HasSubstr("got 2147483648")));
  options = {};
  options.silence = milliseconds(99);
  EXPECT_THAT(CreateChannel("localhost:1", options),
              StatusIs(kInvalid, HasSubstr("got 99 ms")));
}

TEST(DeadlineTest, IsWhatIsLeft) {
  const auto now = std::chrono::system_clock::now();
  const milliseconds most(60'000);
  EXPECT_EQ(RemainingTime(now - milliseconds(1), most), milliseconds(0));
  EXPECT_EQ(RemainingTime(now + std::chrono::hours(1), most), most);
  EXPECT_EQ(RemainingTime(std::chrono::system_clock::time_point::max(), most),
            most);
  EXPECT_EQ(RemainingTime(std::chrono::system_clock::time_point::min(), most),
            milliseconds(0));
  const milliseconds left = RemainingTime(now + milliseconds(30'000), most);
  EXPECT_GT(left, milliseconds(10'000));
  EXPECT_LE(left, milliseconds(30'000));
}

TEST(DeadlineTest, IsSetOnTheContext) {
  grpc::ClientContext context;
  SetDeadline(context, milliseconds(30'000));
  EXPECT_LE(RemainingTime(context.deadline(), milliseconds(60'000)),
            milliseconds(30'000));
}

}  // namespace
}  // namespace gshard
