// FanOut: sends a command to each of several members and collects the replies.

#ifndef SERVICES_COORDINATOR_TRAINING_FAN_OUT_H_
#define SERVICES_COORDINATOR_TRAINING_FAN_OUT_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/coordinator/membership/members.h"
#include "services/coordinator/training/job_mailbox.h"

namespace gshard {

using MemberCommands = std::vector<std::pair<MemberKey, v1::Command>>;

// Appends a command to `member`, for the caller to fill.
inline v1::Command& AddCommand(MemberCommands& commands,
                               const MemberKey& member) {
  return commands.emplace_back(member, v1::Command()).second;
}

// Replies so far.
struct MemberReplies {
  std::vector<v1::CommandReply> replies;  // in the order of the commands
  absl::Status error;                     // the first one, or OK
  size_t failed = 0;                      // whose it is: index of the command
  size_t missing = 0;                     // neither replied, failed nor lost

  // Whether all have replied, or one has failed.
  bool decided() const { return missing == 0 || !error.ok(); }
};

// Sends the commands at once. Replies arrive through `mailbox`, i.e. on the
// job's thread. Members enforces time limits by cutting off slow members;
// `more` is as in Members::Send. Does not block.
std::shared_ptr<const MemberReplies> FanOut(
    Members& members, const std::shared_ptr<JobMailbox>& mailbox,
    MemberCommands commands, absl::Duration more = absl::ZeroDuration());

// Sends the commands, ignoring outcomes.
void Tell(Members& members, MemberCommands commands);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_FAN_OUT_H_
