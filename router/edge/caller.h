// The identity of a caller for shares and limits.

#ifndef ROUTER_EDGE_CALLER_H_
#define ROUTER_EDGE_CALLER_H_

#include <string>

#include "absl/strings/string_view.h"
#include "services/rpc/server/call_info.h"

namespace gshard {

// The caller's authenticated identity if it has one, else the host of `peer`,
// which is gRPC's name of it; see HostOfPeer(). Never log it or use it as a
// label.
std::string CallerOf(const CallInfo& info, absl::string_view peer);

}  // namespace gshard

#endif  // ROUTER_EDGE_CALLER_H_
