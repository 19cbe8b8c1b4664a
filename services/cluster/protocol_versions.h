// ProtocolVersions: the versions of the protocol between members and the
// coordinator that a program supports. A release that changes the protocol also
// supports the previous version, so that processes can be replaced one by one.

#ifndef SERVICES_CLUSTER_PROTOCOL_VERSIONS_H_
#define SERVICES_CLUSTER_PROTOCOL_VERSIONS_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace gshard {

// All from `oldest` to `newest`; 1 <= oldest <= newest.
struct ProtocolVersions {
  int32_t oldest = 1;
  int32_t newest = 1;

  bool operator==(const ProtocolVersions&) const = default;
};

// The versions that this program supports.
inline constexpr ProtocolVersions kProtocolVersions{.oldest = 1, .newest = 1};

// The newest version that both support.
//
// Errors: InvalidArgument if the member's versions are invalid;
// FailedPrecondition if there is no common version.
absl::StatusOr<int32_t> CommonVersion(const ProtocolVersions& ours,
                                      const ProtocolVersions& members);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_PROTOCOL_VERSIONS_H_
