// FanOut: one command for each of several members, and one outcome.

#ifndef SERVICES_COORDINATOR_FAN_OUT_H_
#define SERVICES_COORDINATOR_FAN_OUT_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/coordinator/members.h"
#include "services/coordinator/task_queue.h"

namespace gshard {

using MemberCommands = std::vector<std::pair<MemberKey, v1::Command>>;
// In the order of the commands.
using OnReplies =
    std::function<void(absl::StatusOr<std::vector<v1::CommandReply>>)>;

// Adds commands behind those that are there.
void Append(MemberCommands more, MemberCommands* commands);

// Sends the commands at once. `done` runs on `queue`, once: when all members
// have replied, or as soon as one has failed. Does not block.
void FanOut(Members& members, TaskQueue& queue, MemberCommands commands,
            OnReplies done);

// Sends the commands. `done` runs on `queue`, once: when each member has
// replied, failed or been lost; which of them does not matter.
void Settle(Members& members, TaskQueue& queue, MemberCommands commands,
            std::function<void()> done);

// Sends the commands; outcomes do not matter.
void Tell(Members& members, MemberCommands commands);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_FAN_OUT_H_
