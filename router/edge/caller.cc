#include "router/edge/caller.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/rpc/server/call_info.h"

namespace gshard {

std::string AddressOf(absl::string_view peer) {
  const bool has_port =
      absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
  return std::string(has_port ? peer.substr(0, peer.rfind(':')) : peer);
}

std::string CallerOf(const grpc::ServerContextBase& context) {
  const std::string name = CallInfoOf(context).caller.name;
  return name == kAnonymous ? AddressOf(context.peer())
                            : absl::StrCat("identity:", name);
}

}  // namespace gshard
