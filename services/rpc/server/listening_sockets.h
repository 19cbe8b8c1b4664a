// Sockets to accept TCP connections from.

#ifndef SERVICES_RPC_SERVER_LISTENING_SOCKETS_H_
#define SERVICES_RPC_SERVER_LISTENING_SOCKETS_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gshard {

struct ListeningSockets {
  std::vector<int> descriptors;  // not blocking, owned by the caller
  int port;
};

// Listens at "host:port", at all addresses that the host's name has; port 0:
// any free one. "0.0.0.0" and "[::]" are all addresses, of IPv6 too. No other
// socket can share the port. A connection whose client takes nothing of what is
// sent to it, or does not acknowledge it, ends after `silence`: gRPC's
// keepalive cannot tell while it writes. Errors: InvalidArgument; Unavailable
// if the name has no address or none can be bound.
absl::StatusOr<ListeningSockets> ListenAt(const std::string& address,
                                          std::chrono::milliseconds silence);

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_LISTENING_SOCKETS_H_
