#include "services/coordinator/serving/worker_departure.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/coordinator/serving/serving_diff.h"

namespace gshard {
namespace {

using State = HeldSession::State;

// [E] staying workers that routers may call for the expert.
std::vector<std::set<std::string>> StayingHolders(
    const ObservedMembers& members, const ServedModel& model) {
  std::vector<std::set<std::string>> holders(model.experts);
  for (const v1::WorkerPlacement& bundle : model.placement.workers()) {
    if (!IsHeld(bundle, model, members) ||
        !members.at({bundle.name(), bundle.incarnation()}).takes_experts()) {
      continue;
    }
    for (const int32_t expert : bundle.experts()) {
      holders[expert].insert(bundle.name());
    }
  }
  return holders;
}

// Models with bundles on the worker that routers may call: placed, or placed
// earlier and not yet released.
std::set<std::string> ModelsOn(const MemberKey& key,
                               const ObservedMembers& members,
                               const DesiredModels& desired) {
  const ObservedMember& worker = members.at(key);
  std::set<std::string> models;
  for (const auto& [session, held] : worker.sessions) {
    const auto model = desired.models.find(ModelOf(session));
    if (model == desired.models.end() ||
        !IsOfModel(session, held, model->second)) {
      continue;
    }
    const bool was_placed =
        model->second.placement.version() > 0 &&
        (held.state == State::kReady || held.state == State::kReleasing);
    if (was_placed || IsPlaced(model->second, key.name, session)) {
      models.insert(model->first);
    }
  }
  // An earlier coordinator may have told routers of further sessions.
  for (const std::string& session : worker.reported) {
    const auto model = desired.models.find(ModelOf(session));
    const bool is_wanted = model != desired.models.end();
    if (is_wanted && IsSettled(members, model->second)) continue;
    const bool may_be_called =
        (is_wanted && model->second.may_serve()) ||
        std::any_of(members.begin(), members.end(), [&](const auto& member) {
          return member.second.reported.contains(ModelOf(session));
        });
    if (may_be_called || desired.awaited.contains(ModelNameOf(session))) {
      models.insert(ModelOf(session));
    }
  }
  return models;
}

}  // namespace

std::map<MemberKey, WorkerDeparture> PlanDepartures(
    const ObservedMembers& members, const DesiredModels& desired) {
  const bool any_stays = std::any_of(
      members.begin(), members.end(),
      [](const auto& member) { return member.second.takes_experts(); });
  std::map<MemberKey, WorkerDeparture> departures;
  for (const auto& [key, worker] : members) {
    if (worker.member.info.role != MemberRole::kExpertWorker) continue;
    departures[key].can_be_lost = true;
    if (!worker.member.leaving) continue;
    const std::set<std::string> held = ModelsOn(key, members, desired);
    std::vector<std::string> no_room;
    for (const std::string& session : held) {
      const auto model = desired.models.find(session);
      if (model != desired.models.end() &&
          model->second.assignment.contains(key)) {
        no_room.push_back(session);
      }
    }
    WorkerDeparture& departure = departures[key];
    departure.may_leave = held.empty() || !any_stays;
    departure.why =
        held.empty() ? "nothing that it holds is needed"
        : !any_stays ? "no worker stays that could take its experts"
        : !no_room.empty()
            ? absl::StrCat("room elsewhere for its experts of ",
                           absl::StrJoin(no_room, ", "))
            : absl::StrCat("its experts of ", absl::StrJoin(held, ", "),
                           " to be placed elsewhere");
  }
  for (const auto& [session, model] : desired.models) {
    if (!model.may_serve()) continue;
    for (const std::set<std::string>& holders :
         StayingHolders(members, model)) {
      for (auto& [key, departure] : departures) {
        departure.can_be_lost &=
            holders.size() > (holders.contains(key.name) ? 1 : 0);
      }
    }
  }
  return departures;
}

}  // namespace gshard
