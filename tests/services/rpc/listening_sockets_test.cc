#include "services/rpc/listening_sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/raw_http2.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void Close(const ListeningSockets& sockets) {
  for (const int descriptor : sockets.descriptors) close(descriptor);
}

TEST(ListenAtTest, TakesNamesAndAddresses) {
  for (const char* address :
       {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::]:0"}) {
    ASSERT_OK_AND_ASSIGN(const ListeningSockets sockets, ListenAt(address));
    EXPECT_GT(sockets.port, 0) << address;
    const std::string port = absl::StrCat("127.0.0.1:", sockets.port);
    EXPECT_TRUE(RawHttp2::Connect(port).ok()) << address;
    Close(sockets);
  }
}

TEST(ListenAtTest, SharesAPortWithNobody) {
  ASSERT_OK_AND_ASSIGN(const ListeningSockets sockets, ListenAt("127.0.0.1:0"));
  const std::string address = absl::StrCat("127.0.0.1:", sockets.port);
  EXPECT_THAT(ListenAt(address),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(address), HasSubstr("in use"))));
  Close(sockets);
  ASSERT_OK_AND_ASSIGN(const ListeningSockets again, ListenAt(address));
  Close(again);
}

TEST(ListenAtTest, SaysWhyNot) {
  EXPECT_THAT(ListenAt("203.0.113.1:0"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("Cannot assign requested address")));
  EXPECT_THAT(ListenAt("no.such.host.invalid:0"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("no.such.host.invalid")));
  EXPECT_THAT(ListenAt("7000"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("7000")));
}

}  // namespace
}  // namespace gshard
