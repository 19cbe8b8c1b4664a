#include "services/rpc/server/connection_socket.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gshard {
namespace {

// The /64 network of an address.
std::string NetworkOf(in6_addr address) {
  char text[INET6_ADDRSTRLEN] = {};
  std::memset(&address.s6_addr[8], 0, 8);
  inet_ntop(AF_INET6, &address, text, sizeof(text));
  return text;
}

}  // namespace

Peer PeerOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return {text, absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port))};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return {text, absl::StrCat("ipv4:", text, ":", port)};
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  std::string host = text;
  if (v6.sin6_scope_id != 0) {
    absl::StrAppend(&host, "%25", v6.sin6_scope_id);
  }
  return {NetworkOf(v6.sin6_addr),
          absl::StrCat("ipv6:%5B", host, "%5D:", port)};
}

std::string HostOfPeer(absl::string_view peer) {
  if (absl::ConsumePrefix(&peer, "ipv4:")) {
    return std::string(peer.substr(0, peer.find(':')));
  }
  if (!absl::ConsumePrefix(&peer, "ipv6:%5B")) return "";
  // Its scope, or the bracket, begins with '%'.
  const std::string host(peer.substr(0, peer.find('%')));
  in6_addr address = {};
  return inet_pton(AF_INET6, host.c_str(), &address) == 1 ? NetworkOf(address)
                                                          : host;
}

bool IsOwnConnection(int descriptor, const sockaddr_storage& peer) {
  sockaddr_storage local = {};
  socklen_t size = sizeof(local);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &size) !=
          0 ||
      local.ss_family != peer.ss_family) {
    return false;
  }
  if (local.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(local).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr;
  }
  return IN6_ARE_ADDR_EQUAL(
      &reinterpret_cast<const sockaddr_in6&>(local).sin6_addr,
      &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr);
}

void AbortConnection(int descriptor) {
  const sockaddr nobody = {.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(descriptor, &nobody, sizeof(nobody)) != 0) {
    shutdown(descriptor, SHUT_RDWR);
  }
}

void LimitReceiveBuffer(int descriptor) {
  constexpr int kBytes = 128 << 10;
  (void)setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &kBytes, sizeof(kBytes));
}

void UnlimitReceiveBuffer(int descriptor) {
  constexpr int kUnlocked = 0;
  (void)setsockopt(descriptor, SOL_SOCKET, SO_BUF_LOCK, &kUnlocked,
                   sizeof(kUnlocked));
}

int64_t BytesReceived(int descriptor) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
    return 0;
  }
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace gshard
