// Sockets that listen for TCP connections.

#ifndef SERVICES_RPC_SERVER_LISTENING_SOCKETS_H_
#define SERVICES_RPC_SERVER_LISTENING_SOCKETS_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gshard {

struct ListeningSockets {
  std::vector<int> descriptors;  // non-blocking, owned by the caller
  int port;
};

// Listens at "host:port", at all addresses of the host name; port 0 takes any
// free one. "0.0.0.0" and "[::]" mean all addresses, IPv6 included. No other
// socket can share the port. A connection ends after `silence` if its client
// neither reads nor acknowledges what is sent to it: gRPC's keepalive cannot
// detect that while it has data to write. Errors: InvalidArgument; Unavailable
// if the name has no address or none can be bound.
absl::StatusOr<ListeningSockets> ListenAt(const std::string& address,
                                          std::chrono::milliseconds silence);

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_LISTENING_SOCKETS_H_
