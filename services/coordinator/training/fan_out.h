// FanOut: one command for each of several members, and what comes of them.

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

// What members have answered so far.
struct MemberReplies {
  std::vector<v1::CommandReply> replies;  // in the order of the commands
  absl::Status error;                     // the first that came, or OK
  size_t missing = 0;                     // neither replied, failed nor lost

  // All have replied, or it is in vain.
  bool decided() const { return missing == 0 || !error.ok(); }
};

// Sends the commands at once. What comes is filled in by `mailbox`, i.e. on the
// job's thread. How long members may take is for Members to say, which cuts off
// who takes longer; `more` is as in Members::Send. Does not block.
std::shared_ptr<const MemberReplies> FanOut(
    Members& members, const std::shared_ptr<JobMailbox>& mailbox,
    MemberCommands commands, absl::Duration more = absl::ZeroDuration());

// Sends the commands; outcomes do not matter.
void Tell(Members& members, MemberCommands commands);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_FAN_OUT_H_
