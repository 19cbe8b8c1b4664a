// ServingDiff: the commands that lead members to the desired state, as pure
// functions of the observed and the desired state.
//
// Bundles are loaded first, then routers are told the new placement, and only
// when all of them have it are the old bundles released: calls never wait. A
// version that replaces another is loaded as a standby; when all routers have
// it, they are told that it answers for the name, so that one which cannot load
// it changes nothing. What nobody wants goes from routers first, which finish
// their calls, then from workers.
//
// Commands are idempotent: a member that has a session that it is to load says
// so, and one that has none of that name has released it. So a coordinator that
// knows only what an earlier one placed begins like any other; it finds out
// whether that is there before it tells routers anything.

#ifndef SERVICES_COORDINATOR_SERVING_SERVING_DIFF_H_
#define SERVICES_COORDINATOR_SERVING_SERVING_DIFF_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/coordinator/serving/served_model.h"

namespace gshard {

// A model that is wanted was served by an earlier coordinator, which had placed
// it like this as far as the disk is right.
void Adopt(const v1::Placement& kept, ServedModel* model);
// Takes for the sessions of workers that are there for the first time what the
// earlier coordinator had placed on them.
void FindKept(ServedModel* model, ObservedMembers* members);

// The next desired state of a model: updates its assignment, placement, phase
// and failure to the members' state. `next_version`: of the placement, if it
// changes; higher than all before.
void Advance(const ObservedMembers& members, int64_t next_version,
             ServedModel* model);

// A command about a session.
struct SessionCommand {
  MemberKey member;
  std::string session;
  v1::Command command;
};

// What is to be sent now. Ends when members have what is wanted.
std::vector<SessionCommand> Diff(const ObservedMembers& members,
                                 const DesiredModels& desired);

// Whether all routers that can have the model have been told its placement:
// they call nothing else of it, whatever an earlier coordinator told them.
bool IsSettled(const ObservedMembers& members, const ServedModel& model);

// A look at heartbeats: the sessions that they have, by member.
void OnHeartbeats(const std::map<std::string, std::set<std::string>>& sessions,
                  ObservedMembers* members);

// What is known of a session when a command about it has been sent, and when
// that was answered. `model`: whose it is; null if that is not wanted any more.
void OnSent(const v1::Command& command, const ServedModel* model,
            HeldSession* held);
// Returns the pause after which its state is kUnknown again, so that the member
// is asked once more; `retry_pause` where it did not say UNAVAILABLE.
absl::Duration OnReplied(const absl::Status& status, MemberRole role,
                         absl::Duration retry_pause, ServedModel* model,
                         HeldSession* held);

// A member that says UNAVAILABLE is asked again so often before a model that
// does not serve yet has failed.
inline constexpr int kMaxRefusals = 20;

// The name of a bundle.
std::string BundleSession(const ServedModel& model,
                          const std::vector<int32_t>& experts);

v1::SessionInfo DescribeModel(const ServedModel& model,
                              const ObservedMembers& members);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SERVING_DIFF_H_
