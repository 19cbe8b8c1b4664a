#include "expert_worker/buddy_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<std::shared_ptr<BuddyLink>> BuddyLink::Create(
    const std::string& session, const std::string& address,
    const ChannelOptions& options) {
  ASSIGN_OR_RETURN(auto channel, CreateChannel(address, options));
  return std::shared_ptr<BuddyLink>(
      new BuddyLink(session, address, std::move(channel)));
}

absl::Status BuddyLink::Push(int64_t step, const GradientList& sums) {
  v1::TensorFrameHeader header;
  header.set_session(session_);
  header.set_step(step);
  const absl::Status status =
      ReplicateGradients(channel_, header, {sums.begin(), sums.end()},
                         PushTimeout(BytesOf(sums)), stop_.get_token());
  if (status.ok()) return status;
  const std::string message =
      absl::StrCat("buddy ", address_, ": ", status.message());
  // The buddy may have dropped the session, on command or because it was cut
  // off.
  if (absl::IsNotFound(status) || absl::IsDeadlineExceeded(status)) {
    return absl::UnavailableError(message);
  }
  return absl::Status(status.code(), message);
}

}  // namespace gshard
