// ServingDiff: the commands that bring members to the desired state, as pure
// functions of the observed and the desired state.
//
// Bundles are loaded first, then routers are told the new placement, and only
// when all of them have it are the old bundles released: calls never wait. A
// version that replaces another is loaded as a standby; when all routers have
// it, they are told that the name refers to it, so a router that cannot load it
// changes nothing. Unwanted sessions are released on routers first, which
// finish their calls, then on workers.
//
// Commands are idempotent: a member that already has a session to load says so,
// and releasing an unknown one succeeds. So a coordinator that knows only what
// an earlier one placed needs no special case; it verifies the sessions before
// it tells routers anything.

#ifndef SERVICES_COORDINATOR_SERVING_SERVING_DIFF_H_
#define SERVICES_COORDINATOR_SERVING_SERVING_DIFF_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/coordinator/serving/served_model.h"

namespace gshard {

// Adopts a wanted model that an earlier coordinator served, placed as in its
// stored state.
void Adopt(const v1::Placement& kept, ServedModel* model);
// Assumes on newly joined workers the sessions that were placed there by an
// earlier coordinator, or before they were lost: processes keep them. Call
// after each change of the members.
void FindKept(ServedModel* model, ObservedMembers* members);

// Whether the bundle's worker is a member that has it. Others stay placed while
// experts have no other holder: routers may reach a worker that the coordinator
// has lost, and find out by themselves if it is dead.
bool IsHeld(const v1::WorkerPlacement& bundle, const ServedModel& model,
            const ObservedMembers& members);

// Computes the next desired state of a model: updates its assignment,
// placement, phase and failure to the members' state. `next_version` is used if
// the placement changes; higher than all before.
void Advance(const ObservedMembers& members, int64_t next_version,
             ServedModel* model);

// A command about a session.
struct SessionCommand {
  MemberKey member;
  std::string session;
  v1::Command command;
};

// The commands to send now. Empty when members have reached the desired state.
std::vector<SessionCommand> Diff(const ObservedMembers& members,
                                 const DesiredModels& desired);

// Whether all routers that can load the model have been told its placement, and
// no other one, of an earlier release, has what an earlier coordinator told it:
// they call nothing else of it.
bool IsSettled(const ObservedMembers& members, const ServedModel& model);

// Bytes of the bundles of wanted models that each worker has, or is loading.
std::map<MemberKey, int64_t> ServedBytes(const ObservedMembers& members,
                                         const DesiredModels& desired);

// The name of a bundle.
std::string BundleSession(const ServedModel& model,
                          const std::vector<int32_t>& experts);

v1::SessionInfo DescribeModel(const ServedModel& model,
                              const ObservedMembers& members);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SERVING_DIFF_H_
