// What a ConnectionWatch asks of the kernel about an accepted TCP connection.
// From any thread.

#ifndef SERVICES_RPC_SERVER_CONNECTION_SOCKET_H_
#define SERVICES_RPC_SERVER_CONNECTION_SOCKET_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace gshard {

struct Peer {
  std::string host;  // of IPv6 its /64 network, which one customer has
  std::string name;  // as grpc::ServerContext::peer() says
};

// REQUIRES: IPv4 or IPv6.
Peer PeerOf(const sockaddr_storage& address);

// Ends a connection, and forgets what the kernel has of it: after shutdown()
// gRPC would still read that.
void AbortConnection(int descriptor);

// Limits what the kernel receives ahead of gRPC to 128 KiB. It would let that
// grow to megabytes, which gRPC takes at once while nobody looks.
void LimitReceiveBuffer(int descriptor);
// The kernel chooses again.
void UnlimitReceiveBuffer(int descriptor);

// Bytes that ever came.
int64_t BytesReceived(int descriptor);

// Raises the process's limit of open files to the most that it may have.
void RaiseDescriptorLimit();

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CONNECTION_SOCKET_H_
