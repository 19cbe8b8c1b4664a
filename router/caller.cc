#include "router/caller.h"

#include <grpcpp/security/auth_context.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gshard {

std::string AddressOf(absl::string_view peer) {
  const bool has_port =
      absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
  return std::string(has_port ? peer.substr(0, peer.rfind(':')) : peer);
}

std::string CallerOf(const grpc::ServerContextBase& context) {
  const auto auth = context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> identity = auth->GetPeerIdentity();
    if (!identity.empty()) {
      return absl::StrCat("identity:", std::string(identity.front().data(),
                                                   identity.front().size()));
    }
  }
  return AddressOf(context.peer());
}

}  // namespace gshard
