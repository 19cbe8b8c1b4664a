#include "services/coordinator/training/fan_out.h"

#include <utility>

namespace gshard {

std::shared_ptr<const MemberReplies> FanOut(
    Members& members, const std::shared_ptr<JobMailbox>& mailbox,
    MemberCommands commands, absl::Duration more) {
  auto gathered = std::make_shared<MemberReplies>();
  gathered->replies.resize(commands.size());
  gathered->missing = commands.size();
  for (size_t i = 0; i < commands.size(); ++i) {
    members.Send(
        commands[i].first, std::move(commands[i].second),
        [gathered, i, mailbox](absl::StatusOr<v1::CommandReply> reply) {
          mailbox->Post([gathered, i, reply = std::move(reply)]() mutable {
            --gathered->missing;
            if (reply.ok()) {
              gathered->replies[i] = *std::move(reply);
            } else if (gathered->error.ok()) {
              gathered->error = reply.status();
              gathered->failed = i;
            }
          });
        },
        more);
  }
  return gathered;
}

void Tell(Members& members, MemberCommands commands) {
  for (auto& [key, command] : commands) {
    members.Send(key, std::move(command),
                 [](const absl::StatusOr<v1::CommandReply>&) {});
  }
}

}  // namespace gshard
