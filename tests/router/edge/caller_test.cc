#include "router/edge/caller.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

TEST(CallerTest, ConnectionsOfAHostAreOneCaller) {
  EXPECT_EQ(AddressOf("ipv4:10.0.0.7:4711"), "ipv4:10.0.0.7");
  EXPECT_EQ(AddressOf("ipv6:%5B::1%5D:4711"), "ipv6:%5B::1%5D");
  EXPECT_EQ(AddressOf("ipv6:[fe80::1%252]:80"), "ipv6:[fe80::1%252]");
  EXPECT_EQ(AddressOf("unix:/run/a:7"), "unix:/run/a:7");
  EXPECT_EQ(AddressOf("unix:"), "unix:");
  EXPECT_EQ(AddressOf(""), "");
}

}  // namespace
}  // namespace gshard
