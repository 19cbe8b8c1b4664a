#include "router/edge/caller.h"

#include "absl/strings/str_cat.h"
#include "services/rpc/server/connection_socket.h"

namespace gshard {

std::string CallerOf(const CallInfo& info, absl::string_view peer) {
  const std::string& name = info.caller.name;
  return name == kAnonymous ? absl::StrCat("host:", HostOfPeer(peer))
                            : absl::StrCat("identity:", name);
}

}  // namespace gshard
