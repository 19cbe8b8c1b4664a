#include "services/rpc/server/listening_sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/raw_http2.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kSilence{300};

void Close(const ListeningSockets& sockets) {
  for (const int descriptor : sockets.descriptors) close(descriptor);
}

TEST(ListenAtTest, TakesNamesAndAddresses) {
  for (const char* address :
       {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::]:0"}) {
    ASSERT_OK_AND_ASSIGN(const ListeningSockets sockets,
                         ListenAt(address, kSilence));
    EXPECT_GT(sockets.port, 0) << address;
    const std::string port = absl::StrCat("127.0.0.1:", sockets.port);
    EXPECT_TRUE(RawHttp2::Connect(port).ok()) << address;
    Close(sockets);
  }
}

// A connection whose client reads nothing ends with ETIMEDOUT. gRPC's own pings
// would wait behind the data that it cannot write.
TEST(ListenAtTest, ItsConnectionsEndWhenNothingIsTaken) {
  ASSERT_OK_AND_ASSIGN(const ListeningSockets sockets,
                       ListenAt("127.0.0.1:0", kSilence));
  ASSERT_OK_AND_ASSIGN(const auto client, RawHttp2::Connect(absl::StrCat(
                                              "127.0.0.1:", sockets.port)));
  pollfd listener = {
      .fd = sockets.descriptors[0], .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&listener, 1, 10'000), 1);
  const int accepted =
      accept4(sockets.descriptors[0], nullptr, nullptr, SOCK_NONBLOCK);
  ASSERT_GE(accepted, 0);
  const std::string data(1 << 20, 'd');
  while (send(accepted, data.data(), data.size(), MSG_NOSIGNAL) > 0) continue;
  EXPECT_EQ(errno, EAGAIN);
  pollfd connection = {.fd = accepted, .events = 0, .revents = 0};
  EXPECT_EQ(poll(&connection, 1, 60'000), 1);
  EXPECT_EQ(send(accepted, "", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  close(accepted);
  Close(sockets);
}

TEST(ListenAtTest, SharesAPortWithNobody) {
  ASSERT_OK_AND_ASSIGN(const ListeningSockets sockets,
                       ListenAt("127.0.0.1:0", kSilence));
  const std::string address = absl::StrCat("127.0.0.1:", sockets.port);
  EXPECT_THAT(ListenAt(address, kSilence),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(address), HasSubstr("in use"))));
  Close(sockets);
  ASSERT_OK_AND_ASSIGN(const ListeningSockets again,
                       ListenAt(address, kSilence));
  Close(again);
}

TEST(ListenAtTest, SaysWhyNot) {
  EXPECT_THAT(ListenAt("203.0.113.1:0", kSilence),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("Cannot assign requested address")));
  EXPECT_THAT(ListenAt("no.such.host.invalid:0", kSilence),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("no.such.host.invalid")));
  EXPECT_THAT(ListenAt("7000", kSilence),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("7000")));
}

}  // namespace
}  // namespace gshard
