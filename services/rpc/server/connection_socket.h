// Socket operations of ConnectionWatch on an accepted TCP connection.
// Thread-safe.

#ifndef SERVICES_RPC_SERVER_CONNECTION_SOCKET_H_
#define SERVICES_RPC_SERVER_CONNECTION_SOCKET_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gshard {

struct Peer {
  std::string host;  // of IPv6 the /64 network, which one customer has
  std::string name;  // in the form of grpc::ServerContext::peer()
};

// REQUIRES: IPv4 or IPv6.
Peer PeerOf(const sockaddr_storage& address);
// The host of the peer with this name; empty if it is not one of TCP.
std::string HostOfPeer(absl::string_view peer);

// Whether an accepted connection was made on this machine: from the address
// that it was made to.
bool IsOwnConnection(int descriptor, const sockaddr_storage& peer);

// Resets a connection and discards the bytes that the kernel has received:
// after shutdown() gRPC would still read them.
void AbortConnection(int descriptor);

// Limits the kernel's receive buffer to 128 KiB. Otherwise it may grow to
// megabytes, which gRPC reads at once, between two looks at the connection.
void LimitReceiveBuffer(int descriptor);
// Restores the kernel's automatic size.
void UnlimitReceiveBuffer(int descriptor);

// Total bytes received on the connection.
int64_t BytesReceived(int descriptor);

// Raises the process's soft limit of open files to the hard limit.
void RaiseDescriptorLimit();

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CONNECTION_SOCKET_H_
