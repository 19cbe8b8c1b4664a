#include "services/coordinator/serving/session_events.h"

#include <iterator>

namespace gshard {
namespace {

using State = HeldSession::State;

}  // namespace

void OnHeartbeats(const std::map<std::string, std::set<std::string>>& sessions,
                  ObservedMembers* members) {
  for (auto& [key, member] : *members) {
    const auto found = sessions.find(key.name);
    const std::set<std::string> has =
        found == sessions.end() ? std::set<std::string>() : found->second;
    for (const std::string& session : has) ++member.sessions[session].reports;
    std::erase_if(member.sessions, [&](const auto& entry) {
      return entry.second.state == State::kUnknown &&
             !has.contains(entry.first);
    });
  }
}

void OnSent(const v1::Command& command, const ServedModel* model,
            HeldSession* held) {
  if (command.has_unload_session()) {
    held->state = State::kReleasing;
  } else if (command.has_update_placement()) {
    held->state = State::kTelling;
    held->version = command.update_placement().placement().version();
  } else {
    const v1::LoadSession& load = command.load_session();
    held->state = State::kLoading;
    held->content = model->content;
    held->experts.assign(load.worker().experts().begin(),
                         load.worker().experts().end());
    held->bytes = std::ssize(held->experts) * model->plan.expert_bytes;
    held->version = load.router().placement().version();
  }
}

absl::Duration OnReplied(const absl::Status& status, MemberRole role,
                         absl::Duration retry_pause, ServedModel* model,
                         HeldSession* held) {
  const absl::Duration never = absl::InfiniteDuration();
  const bool was_loading = held->state == State::kLoading;
  const bool is_router = role == MemberRole::kRouter;
  const bool elsewhere = was_loading && is_router && absl::IsAborted(status);
  const bool found =
      elsewhere || (was_loading && absl::IsAlreadyExists(status));
  if (held->state != State::kReleasing && (status.ok() || found)) {
    held->state = State::kReady;
    held->refusals = 0;
    if (found) held->version = 0;  // it has another coordinator's placement
    if (elsewhere) held->content = 0;
    return never;
  }
  // Of an earlier model of the same name and version: its reply says nothing of
  // this one.
  const bool is_wanted = model != nullptr && held->content == model->content;
  if (!was_loading || !is_wanted) {
    // If it still exists, heartbeats will continue to report it.
    *held = HeldSession();
    return never;
  }
  if (is_router && absl::IsUnimplemented(status)) {
    held->state = State::kLeftOut;  // until it is replaced
    held->refusal = status;
    return never;
  }
  // A disk is not mounted yet, or a router cannot reach a worker, which may
  // have been lost meanwhile.
  const bool unavailable = absl::IsUnavailable(status);
  const bool often = ++held->refusals > kMaxRefusals;
  if (!model->may_serve() && (!unavailable || often)) model->failure = status;
  held->state = unavailable && !is_router ? State::kWaiting : State::kPaused;
  if (!unavailable) return retry_pause;
  return often ? absl::Seconds(10) : absl::Milliseconds(200);
}

}  // namespace gshard
