#include "services/rpc/server/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

void SetPort(sockaddr& address, int port) {
  if (address.sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port =
        htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port =
        htons(static_cast<uint16_t>(port));
  }
}

int PortOf(int descriptor) {
  sockaddr_in6 bound = {};
  socklen_t size = sizeof(bound);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.sin6_port);  // IPv4's port has the same offset
}

// Returns a listening socket, or -1 with errno set.
int Listen(const addrinfo& info, bool both_families,
           std::chrono::milliseconds silence) {
  const int descriptor =
      socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return -1;
  const int on = 1;
  const auto timeout = static_cast<unsigned>(silence.count());
  const int only_v6 = both_families ? 0 : 1;
  // Accepted connections inherit the options of their listener.
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout,
             sizeof(timeout));
  if (info.ai_family == AF_INET6) {
    setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6,
               sizeof(only_v6));
  }
  if (bind(descriptor, info.ai_addr, info.ai_addrlen) == 0 &&
      listen(descriptor, SOMAXCONN) == 0) {
    return descriptor;
  }
  const int error = errno;
  close(descriptor);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<ListeningSockets> ListenAt(const std::string& address,
                                          std::chrono::milliseconds silence) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected \"host:port\", got \"", address, "\""));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  const bool everywhere = host == "0.0.0.0" || host == "::";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const auto look_up = [&](const char* name) {
    return getaddrinfo(name, address.c_str() + colon + 1, &hints, &found);
  };
  int error = look_up(everywhere ? "::" : host.c_str());
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on \"", address,
                                               "\": ", gai_strerror(error)));
  }
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  ListeningSockets sockets = {.descriptors = {}, .port = 0};
  int reason = 0;
  const auto listen_at_all = [&] {
    for (addrinfo* info = addresses.get(); info != nullptr;
         info = info->ai_next) {
      if (sockets.port != 0) SetPort(*info->ai_addr, sockets.port);
      const int descriptor = Listen(*info, everywhere, silence);
      if (descriptor < 0) {
        reason = errno;
        continue;
      }
      sockets.descriptors.push_back(descriptor);
      sockets.port = PortOf(descriptor);
    }
  };
  listen_at_all();
  // The machine has no IPv6.
  if (sockets.descriptors.empty() && everywhere && reason != EADDRINUSE &&
      look_up("0.0.0.0") == 0) {
    addresses.reset(found);
    listen_at_all();
  }
  if (sockets.descriptors.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on \"", address, "\": ", strerror(reason)));
  }
  return sockets;
}

}  // namespace gshard
