#include "services/collectives/listen_check.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace gshard {

absl::Status CheckListenHost(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* addresses = nullptr;
  std::string reason;
  if (const int error =
          getaddrinfo(host.c_str(), nullptr, &hints, &addresses)) {
    reason = gai_strerror(error);
    addresses = nullptr;
  }
  bool listens = false;
  for (const addrinfo* address = addresses; address != nullptr && !listens;
       address = address->ai_next) {
    const int socket_fd =
        socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC,
               address->ai_protocol);
    listens = socket_fd >= 0 &&
              bind(socket_fd, address->ai_addr, address->ai_addrlen) == 0;
    if (!listens) reason = strerror(errno);
    if (socket_fd >= 0) close(socket_fd);
  }
  if (addresses != nullptr) freeaddrinfo(addresses);
  if (listens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on host '", host, "': ", reason));
}

}  // namespace gshard
