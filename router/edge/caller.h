// The identity of a caller for shares and limits.

#ifndef ROUTER_EDGE_CALLER_H_
#define ROUTER_EDGE_CALLER_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/string_view.h"

namespace gshard {

// The address in gRPC's name of a peer, without its port, which differs per
// connection: "ipv4:10.0.0.7:4711" -> "ipv4:10.0.0.7".
std::string AddressOf(absl::string_view peer);

// The peer's authenticated identity if it has one, else its address. Never log
// it or use it as a label.
std::string CallerOf(const grpc::ServerContextBase& context);

}  // namespace gshard

#endif  // ROUTER_EDGE_CALLER_H_
