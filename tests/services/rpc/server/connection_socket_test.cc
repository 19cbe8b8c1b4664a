#include "services/rpc/server/connection_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace gshard {
namespace {

sockaddr_storage AddressOf(const char* host) {
  sockaddr_storage address = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(7400);
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, host, &v6.sin6_addr), 1);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(7400);
  }
  return address;
}

TEST(ConnectionSocketTest, APeersNameTellsItsHost) {
  const struct {
    const char* address;
    const char* host;
    const char* name;
  } cases[] = {
      {"192.0.2.1", "192.0.2.1", "ipv4:192.0.2.1:7400"},
      {"::ffff:192.0.2.1", "192.0.2.1", "ipv4:192.0.2.1:7400"},
      {"::1", "::", "ipv6:%5B::1%5D:7400"},
      {"2001:db8:1:2:3:4:5:6",
       "2001:db8:1:2::", "ipv6:%5B2001:db8:1:2:3:4:5:6%5D:7400"},
  };
  for (const auto& expected : cases) {
    const Peer peer = PeerOf(AddressOf(expected.address));
    EXPECT_EQ(peer.host, expected.host);
    EXPECT_EQ(peer.name, expected.name);
    EXPECT_EQ(HostOfPeer(peer.name), expected.host);
  }
  EXPECT_EQ(HostOfPeer("ipv6:%5Bfe80::1%252%5D:7400"), "fe80::");
  EXPECT_EQ(HostOfPeer("unix:/run/socket"), "");
}

}  // namespace
}  // namespace gshard
