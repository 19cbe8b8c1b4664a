#include "services/coordinator/fan_out.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace gshard {
namespace {

struct Gathering {
  std::mutex mutex;
  std::vector<v1::CommandReply> replies;
  size_t missing = 0;
  bool failed = false;
};

}  // namespace

void Append(MemberCommands more, MemberCommands* commands) {
  for (auto& command : more) commands->push_back(std::move(command));
}

void FanOut(Members& members, TaskQueue& queue, MemberCommands commands,
            OnReplies done) {
  if (commands.empty()) {
    queue.Post([done] { done(std::vector<v1::CommandReply>()); });
    return;
  }
  auto gathering = std::make_shared<Gathering>();
  gathering->replies.resize(commands.size());
  gathering->missing = commands.size();
  for (size_t i = 0; i < commands.size(); ++i) {
    members.Send(
        commands[i].first, std::move(commands[i].second),
        [gathering, i, done, &queue](absl::StatusOr<v1::CommandReply> reply) {
          std::lock_guard<std::mutex> lock(gathering->mutex);
          if (gathering->failed) return;
          if (!reply.ok()) {
            gathering->failed = true;
            queue.Post([done, status = reply.status()] { done(status); });
            return;
          }
          gathering->replies[i] = *std::move(reply);
          if (--gathering->missing > 0) return;
          queue.Post(
              [done, gathering] { done(std::move(gathering->replies)); });
        });
  }
}

void Settle(Members& members, TaskQueue& queue, MemberCommands commands,
            std::function<void()> done) {
  if (commands.empty()) return queue.Post(std::move(done));
  auto missing = std::make_shared<std::atomic<size_t>>(commands.size());
  for (auto& [key, command] : commands) {
    members.Send(
        key, std::move(command),
        [missing, done, &queue](const absl::StatusOr<v1::CommandReply>&) {
          if (--*missing == 0) queue.Post(done);
        });
  }
}

void Tell(Members& members, MemberCommands commands) {
  for (auto& [key, command] : commands) {
    members.Send(key, std::move(command),
                 [](const absl::StatusOr<v1::CommandReply>&) {});
  }
}

}  // namespace gshard
