// SessionEvents: what heartbeats, commands and replies change in the observed
// state of members' sessions. Pure functions.

#ifndef SERVICES_COORDINATOR_SERVING_SESSION_EVENTS_H_
#define SERVICES_COORDINATOR_SERVING_SESSION_EVENTS_H_

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/coordinator/serving/served_model.h"

namespace gshard {

// Processes heartbeats: the sessions in them, by member.
void OnHeartbeats(const std::map<std::string, std::set<std::string>>& sessions,
                  ObservedMembers* members);

// Updates a session's state when a command about it has been sent, and when it
// was answered. `model` is its model; null if no longer wanted.
void OnSent(const v1::Command& command, const ServedModel* model,
            HeldSession* held);
// Returns the pause after which its state becomes kUnknown again, so that the
// member is asked again; `retry_pause` unless it was UNAVAILABLE.
absl::Duration OnReplied(const absl::Status& status, MemberRole role,
                         absl::Duration retry_pause, ServedModel* model,
                         HeldSession* held);

// Number of UNAVAILABLE replies after which a model that does not serve yet
// fails, and a router gives up an earlier version.
inline constexpr int kMaxRefusals = 20;

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SESSION_EVENTS_H_
