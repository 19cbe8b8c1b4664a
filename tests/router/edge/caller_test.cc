#include "router/edge/caller.h"

#include <gtest/gtest.h>

namespace gshard {
namespace {

CallInfo InfoOf(const char* name) {
  CallInfo info;
  info.caller.name = name;
  return info;
}

TEST(CallerTest, ConnectionsOfAHostAreOneCaller) {
  const auto caller = [](const char* peer) {
    return CallerOf(InfoOf(kAnonymous), peer);
  };
  EXPECT_EQ(caller("ipv4:10.0.0.7:4711"), caller("ipv4:10.0.0.7:4712"));
  EXPECT_NE(caller("ipv4:10.0.0.7:4711"), caller("ipv4:10.0.0.8:4711"));
  // One customer has a /64 of addresses.
  EXPECT_EQ(caller("ipv6:%5B2001:db8:1:2::3%5D:80"),
            caller("ipv6:%5B2001:db8:1:2:ffff::4%5D:81"));
  EXPECT_NE(caller("ipv6:%5B2001:db8:1:2::3%5D:80"),
            caller("ipv6:%5B2001:db8:1:3::3%5D:80"));
  EXPECT_EQ(caller("unix:"), caller("unix:/run/a"));
}

TEST(CallerTest, AKnownCallerIsOneWhereverItComesFrom) {
  const CallInfo shop = InfoOf("shop");
  EXPECT_EQ(CallerOf(shop, "ipv4:10.0.0.7:4711"), CallerOf(shop, "unix:"));
  EXPECT_NE(CallerOf(shop, ""),
            CallerOf(InfoOf("10.0.0.7"), "ipv4:10.0.0.7:4711"));
}

}  // namespace
}  // namespace gshard
