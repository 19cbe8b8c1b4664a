#include "services/cluster/protocol_versions.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

std::string Text(const ProtocolVersions& versions) {
  return versions.oldest == versions.newest
             ? absl::StrCat(versions.newest)
             : absl::StrCat(versions.oldest, " to ", versions.newest);
}

}  // namespace

absl::StatusOr<int32_t> CommonVersion(const ProtocolVersions& ours,
                                      const ProtocolVersions& members) {
  if (members.oldest < 1 || members.newest < members.oldest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "protocol_version: expected 1 or above, and an oldest one from 1 to "
        "that, got ",
        members.newest, " and ", members.oldest));
  }
  const int32_t common = std::min(ours.newest, members.newest);
  if (common < ours.oldest || common < members.oldest) {
    return absl::FailedPreconditionError(
        absl::StrCat("protocol_version: expected ", Text(ours),
                     ", which the coordinator speaks, got ", Text(members)));
  }
  return common;
}

}  // namespace gshard
