#include "services/coordinator/serving/serving_diff.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/random.h"
#include "services/cluster/placement_bundles.h"
#include "services/coordinator/serving/expert_assignment.h"
#include "services/coordinator/serving/session_events.h"

namespace gshard {
namespace {

using Phase = ServedModel::Phase;
using State = HeldSession::State;

// A single heartbeat may predate a release of the session.
constexpr int kReportsBelieved = 2;

// Number of lost workers' bundles that are remembered for each model.
constexpr int kMaxAway = 1024;

bool IsRouter(const ObservedMember& member) {
  return member.member.info.role == MemberRole::kRouter;
}

// Routers that cannot load a model are not waited for.
bool IsOut(const HeldSession& held) {
  return held.state == State::kPaused || held.state == State::kLeftOut;
}

// Its release derives other segments of this model.
bool IsLeftOut(const ServedModel& model, const HeldSession& held) {
  return held.state == State::kLeftOut && held.content == model.content;
}

bool HasModel(const ServedModel& model, const HeldSession& held) {
  return held.content == model.content &&
         (held.state == State::kReady || held.state == State::kTelling);
}

// Whether it has the current placement and, if it should, answers for the name.
bool IsUpToDate(const ServedModel& model, const HeldSession& held) {
  return held.content == model.content && held.state == State::kReady &&
         held.version == model.placement.version();
}

const HeldSession& Find(const ObservedMember& member,
                        const std::string& session) {
  static const HeldSession& unknown = *new HeldSession();
  const auto found = member.sessions.find(session);
  return found == member.sessions.end() ? unknown : found->second;
}

// A leaving router is not given what it does not have, nor waited for. What it
// has it may call until it is gone, so of that it is told like any other.
bool GoesWithout(const ObservedMember& router, const std::string& session) {
  return router.member.leaving && !router.reported.contains(session) &&
         Find(router, session).state == State::kUnknown;
}

template <typename Predicate>
bool AllRouters(const ObservedMembers& members, const ServedModel& model,
                Predicate holds) {
  return std::all_of(members.begin(), members.end(), [&](const auto& one) {
    return !IsRouter(one.second) || GoesWithout(one.second, model.session) ||
           holds(Find(one.second, model.session));
  });
}

// Whether all routers that can load the model are up to date.
bool AllRoutersKnow(const ObservedMembers& members, const ServedModel& model) {
  return AllRouters(members, model, [&](const HeldSession& held) {
    return IsUpToDate(model, held) || IsOut(held);
  });
}

// A bundle that a worker has, or should have.
struct Bundle {
  const ObservedMember* worker;
  std::string session;
  std::vector<int32_t> experts;
  State state;
  bool wanted;  // else released once others have its experts
  bool in_use;  // in the current placement
};

std::vector<Bundle> BundlesOf(const ObservedMembers& members,
                              const ServedModel& model) {
  std::vector<Bundle> bundles;
  for (const auto& [key, worker] : members) {
    if (IsRouter(worker)) continue;
    const size_t first = bundles.size();
    std::vector<std::vector<int32_t>> experts;
    for (const auto& [session, held] : worker.sessions) {
      if (!IsOfModel(session, held, model) || !IsLoadedOrLoading(held))
        continue;
      experts.push_back(held.experts);
      bundles.push_back({&worker, session, held.experts, held.state,
                         /*wanted=*/false, IsPlaced(model, key.name, session)});
    }
    const auto assigned = model.assignment.find(key);
    if (assigned == model.assignment.end()) continue;
    if (!worker.takes_experts()) {
      // It keeps bundles in use, since there is no room elsewhere.
      for (size_t b = first; b < bundles.size(); ++b) {
        bundles[b].wanted = bundles[b].in_use;
      }
      continue;
    }
    const BundleChange change = PlanBundles(experts, assigned->second);
    for (size_t p = 0; p < experts.size(); ++p) {
      bundles[first + p].wanted = change.keep[p];
    }
    if (change.load.empty()) continue;
    const std::string session = BundleSession(model, change.load);
    bundles.push_back({&worker, session, change.load,
                       Find(worker, session).state,
                       /*wanted=*/true, /*in_use=*/false});
  }
  return bundles;
}

bool IsMissing(const Bundle& bundle) {
  return bundle.wanted && bundle.state != State::kReady;
}

// The placement that routers may call.
v1::Placement PlacementOf(const ServedModel& model,
                          const std::vector<Bundle>& bundles) {
  // Bundles in use that will be released serve until their successors are
  // loaded, and partial additions wait for the others.
  const bool loading = std::any_of(bundles.begin(), bundles.end(), IsMissing);
  const auto is_covered = [&](const Bundle& bundle) {
    return std::any_of(
        bundles.begin(), bundles.end(), [&](const Bundle& other) {
          return other.worker == bundle.worker && !other.wanted &&
                 other.in_use && other.state == State::kReady &&
                 std::includes(other.experts.begin(), other.experts.end(),
                               bundle.experts.begin(), bundle.experts.end());
        });
  };
  v1::Placement placement;
  std::set<int32_t> held;
  for (const Bundle& bundle : bundles) {
    const bool placed = bundle.wanted ? !loading || !is_covered(bundle)
                                      : loading && bundle.in_use;
    if (bundle.state != State::kReady || !placed) continue;
    const Member& worker = bundle.worker->member;
    v1::WorkerPlacement* const out = placement.add_workers();
    out->set_name(worker.info.id);
    out->set_address(worker.info.address);
    *out->mutable_experts() = {bundle.experts.begin(), bundle.experts.end()};
    out->set_session(bundle.session);
    out->set_incarnation(worker.incarnation);
    held.insert(bundle.experts.begin(), bundle.experts.end());
  }
  if (!model.may_serve()) return placement;
  for (const v1::WorkerPlacement& before : model.placement.workers()) {
    if (!std::all_of(before.experts().begin(), before.experts().end(),
                     [&](int32_t e) { return held.contains(e); })) {
      *placement.add_workers() = before;
    }
  }
  return placement;
}

// What is placed on members that have it.
v1::Placement HeldOf(const ServedModel& model, const ObservedMembers& members) {
  v1::Placement placement = model.placement;
  auto& workers = *placement.mutable_workers();
  workers.erase(std::remove_if(workers.begin(), workers.end(),
                               [&](const v1::WorkerPlacement& bundle) {
                                 return !IsHeld(bundle, model, members);
                               }),
                workers.end());
  return placement;
}

// Whether routers may learn the placement.
bool MayPlace(const ServedModel& model, const std::vector<Bundle>& bundles) {
  if (model.phase != Phase::kLoading) return true;
  // For a new model only when all of it is loaded; for a restored one when the
  // bundles in use have been found again.
  return std::none_of(
      bundles.begin(), bundles.end(), [&](const Bundle& bundle) {
        return model.adopted ? bundle.in_use && bundle.state != State::kReady &&
                                   bundle.state != State::kWaiting
                             : IsMissing(bundle);
      });
}

// Loads wanted bundles, and probes for those that routers may be calling.
void LoadBundles(const ServedModel& model, const std::vector<Bundle>& bundles,
                 std::vector<SessionCommand>* commands) {
  for (const Bundle& bundle : bundles) {
    if (bundle.state != State::kUnknown || !(bundle.wanted || bundle.in_use)) {
      continue;
    }
    commands->push_back({KeyOf(bundle.worker->member), bundle.session, {}});
    v1::LoadSession& load = *commands->back().command.mutable_load_session();
    load = model.plan.worker_load;
    load.set_session(bundle.session);
    *load.mutable_worker()->mutable_experts() = {bundle.experts.begin(),
                                                 bundle.experts.end()};
  }
}

SessionCommand Release(const MemberKey& member, const std::string& session) {
  SessionCommand release{member, session, {}};
  release.command.mutable_unload_session()->set_session(session);
  return release;
}

void TellRouters(const ObservedMembers& members, const ServedModel& model,
                 std::vector<SessionCommand>* commands) {
  if (model.placement.version() == 0) return;
  // A router loads nothing with workers that it cannot reach. It is told of
  // lost ones when it has the model.
  v1::Placement to_load = HeldOf(model, members);
  if (to_load.workers_size() < model.placement.workers_size()) {
    to_load.set_version(0);
  }
  for (const auto& [key, router] : members) {
    if (!IsRouter(router)) continue;
    const HeldSession& held = Find(router, model.session);
    SessionCommand tell{key, model.session, {}};
    if (GoesWithout(router, model.session)) continue;
    if (held.state == State::kUnknown ||
        (held.state == State::kLeftOut && !IsLeftOut(model, held))) {
      v1::LoadSession& load = *tell.command.mutable_load_session();
      load = model.plan.router_load;
      *load.mutable_router()->mutable_placement() = to_load;
      load.mutable_router()->set_standby(model.standby);
    } else if (held.state != State::kReady || IsUpToDate(model, held)) {
      continue;
    } else if (held.content != model.content) {
      // The same name and version, but of another checkpoint. A leaving router
      // would not get this one.
      if (router.member.leaving) continue;
      tell = Release(key, model.session);
    } else {
      v1::UpdatePlacement& update = *tell.command.mutable_update_placement();
      update.set_session(model.session);
      *update.mutable_placement() = model.placement;
      update.set_current(!model.standby);
    }
    commands->push_back(std::move(tell));
  }
}

// Releases sessions that nobody needs.
void ReleaseOthers(
    const ObservedMembers& members, const DesiredModels& desired,
    const std::set<std::pair<MemberKey, std::string>>& needed_bundles,
    std::vector<SessionCommand>* commands) {
  std::set<std::string> with_routers, changing, known, settled;
  for (const auto& [key, member] : members) {
    if (!IsRouter(member)) continue;
    with_routers.insert(member.reported.begin(), member.reported.end());
    for (const auto& [session, held] : member.sessions) {
      if (held.state != State::kUnknown || held.reports > 0) {
        with_routers.insert(session);
      }
    }
  }
  for (const auto& [session, model] : desired.models) {
    if (model.phase != Phase::kAnswering) changing.insert(ModelNameOf(session));
    if (model.phase == Phase::kLoading || !AllRoutersKnow(members, model)) {
      continue;
    }
    known.insert(session);
    if (IsSettled(members, model)) settled.insert(session);
  }
  // A router answers with an earlier version until it has a wanted one, or has
  // often failed to load that.
  const auto awaits = [&](const ObservedMember& router,
                          const std::string& name) {
    bool any = false;
    for (const auto& [session, model] : desired.models) {
      if (ModelNameOf(session) != name) continue;
      const HeldSession& held = Find(router, session);
      if (HasModel(model, held)) return false;
      any |= held.state != State::kLeftOut && held.refusals <= kMaxRefusals;
    }
    return any;
  };
  const auto may_go = [&](const MemberKey& key, const std::string& session,
                          const HeldSession& held) {
    const bool unknown = held.state == State::kUnknown;
    if (unknown ? held.reports < kReportsBelieved
                : held.state != State::kReady && !IsOut(held)) {
      return false;
    }
    const ObservedMember& member = members.at(key);
    const bool is_router = IsRouter(member);
    const std::string model = ModelOf(session), name = ModelNameOf(session);
    if (const auto wanted = desired.models.find(model);
        wanted != desired.models.end()) {
      // Others may be called by routers that are left out.
      const bool is_its = held.content == wanted->second.content;
      return !is_router && !IsOut(held) &&
             (is_its ? known : settled).contains(model) &&
             !needed_bundles.contains({key, session});
    }
    return !desired.awaited.contains(name) &&
           !(unknown && changing.contains(name)) &&
           (is_router ? !awaits(member, name) : !with_routers.contains(model));
  };
  for (const auto& [key, member] : members) {
    for (const auto& [session, held] : member.sessions) {
      if (may_go(key, session, held)) {
        commands->push_back(Release(key, session));
      }
    }
  }
}

}  // namespace

bool IsPlaced(const ServedModel& model, const std::string& worker,
              const std::string& session) {
  const auto& placed = model.placement.workers();
  return std::any_of(placed.begin(), placed.end(), [&](const auto& bundle) {
    return bundle.name() == worker && bundle.session() == session;
  });
}

bool IsSettled(const ObservedMembers& members, const ServedModel& model) {
  return model.phase != Phase::kLoading && AllRoutersKnow(members, model) &&
         std::none_of(members.begin(), members.end(), [&](const auto& one) {
           return Find(one.second, model.session).state == State::kLeftOut &&
                  one.second.reported.contains(model.session);
         });
}

void Adopt(const v1::Placement& kept, ServedModel* model) {
  std::map<std::string, std::set<int32_t>> placed;  // by worker
  for (const v1::WorkerPlacement& bundle : kept.workers()) {
    std::vector<int32_t> experts;
    for (const int32_t expert :
         std::set<int32_t>(bundle.experts().begin(), bundle.experts().end())) {
      if (expert < 0 || expert >= model->experts) continue;
      if (placed[bundle.name()].insert(expert).second)
        experts.push_back(expert);
    }
    if (experts.empty()) continue;
    v1::WorkerPlacement* const out = model->placement.add_workers();
    *out = bundle;
    *out->mutable_experts() = {experts.begin(), experts.end()};
    out->set_session(BundleSession(*model, experts));
  }
  model->away = model->placement;
  model->adopted = !kept.workers().empty();
}

bool IsHeld(const v1::WorkerPlacement& bundle, const ServedModel& model,
            const ObservedMembers& members) {
  const auto worker = members.find({bundle.name(), bundle.incarnation()});
  return worker != members.end() &&
         HasModel(model, Find(worker->second, bundle.session()));
}

void FindKept(ServedModel* model, ObservedMembers* members) {
  const auto find = [members](const std::string& name) {
    const auto worker = members->lower_bound({name, 0});
    return worker == members->end() || worker->first.name != name
               ? nullptr
               : &worker->second;
  };
  v1::Placement away = std::exchange(model->away, {});
  bool any_lost = false, any_there = false;
  for (const v1::WorkerPlacement& bundle : model->placement.workers()) {
    const ObservedMember* const worker = find(bundle.name());
    if (worker != nullptr &&
        (worker->member.incarnation == bundle.incarnation() ||
         worker->sessions.contains(bundle.session()))) {
      any_there = true;
    } else if (std::none_of(away.workers().begin(), away.workers().end(),
                            [&](const v1::WorkerPlacement& other) {
                              return other.name() == bundle.name() &&
                                     other.session() == bundle.session();
                            })) {
      any_lost = true;
      *away.add_workers() = bundle;
    }
  }
  for (const v1::WorkerPlacement& bundle : away.workers()) {
    ObservedMember* const worker = find(bundle.name());
    if (worker == nullptr) {
      *model->away.add_workers() = bundle;
      continue;
    }
    HeldSession& held = worker->sessions[bundle.session()];
    held.content = model->content;
    held.experts.assign(bundle.experts().begin(), bundle.experts().end());
    held.bytes = std::ssize(held.experts) * model->plan.expert_bytes;
  }
  auto& rest = *model->away.mutable_workers();
  if (rest.size() > kMaxAway) {
    rest.erase(rest.begin(), rest.end() - kMaxAway);
  }
  model->settling |= model->may_serve() && any_lost && !any_there;
  if (rest.empty()) model->settling = false;
}

void Advance(const ObservedMembers& members, int64_t next_version,
             ServedModel* model) {
  const auto there_is = [&](MemberRole role) {
    return std::any_of(members.begin(), members.end(), [&](const auto& one) {
      return one.second.member.info.role == role && !one.second.member.leaving;
    });
  };
  const auto fail = [&](const absl::Status& why) {
    if (!model->may_serve()) model->failure.Update(why);
  };
  auto assignment = AssignExperts(*model, members);
  if (assignment.ok()) {
    model->assignment = *std::move(assignment);
  } else {
    LogError("a served model cannot be placed",
             {{"session", model->session}, {"status", assignment.status()}});
    fail(assignment.status());
  }
  if (model->experts > 0 && !there_is(MemberRole::kExpertWorker)) {
    fail(absl::UnavailableError("all expert workers were lost"));
  }
  if (there_is(MemberRole::kRouter) &&
      AllRouters(members, *model, [&](const HeldSession& held) {
        return IsLeftOut(*model, held);
      })) {
    for (const auto& [key, member] : members) {
      if (IsRouter(member)) fail(Find(member, model->session).refusal);
    }
  }
  if (!model->failure.ok()) return;
  const std::vector<Bundle> bundles = BundlesOf(members, *model);
  if (MayPlace(*model, bundles)) {
    v1::Placement placement = PlacementOf(*model, bundles);
    placement.set_version(model->placement.version());
    if (placement.version() == 0 ||
        placement.SerializeAsString() != model->placement.SerializeAsString()) {
      model->placement = std::move(placement);
      model->placement.set_version(next_version);
    }
  }
  if (model->placement.version() == 0) return;
  if (!there_is(MemberRole::kRouter)) {
    fail(absl::UnavailableError("all routers were lost"));
  }
  // For a model that already serves, routers that cannot load it join later.
  const auto is_left_out = [&](const HeldSession& held) {
    return model->adopted ? IsOut(held) : held.state == State::kLeftOut;
  };
  const auto has_or_is_left_out = [&](const HeldSession& held) {
    return HasModel(*model, held) || is_left_out(held);
  };
  if (model->phase == Phase::kLoading &&
      (model->adopted ||
       std::none_of(bundles.begin(), bundles.end(), IsMissing)) &&
      AllRouters(members, *model, has_or_is_left_out) &&
      !AllRouters(members, *model, is_left_out)) {
    model->phase = Phase::kLoaded;
    if (std::exchange(model->standby, false)) {
      model->placement.set_version(next_version);
    }
  }
  // The previous version is released next, so no router may lack this one.
  if (model->phase == Phase::kLoaded && AllRoutersKnow(members, *model)) {
    model->phase = Phase::kAnswering;
  }
  RecordHomes(model);
}

std::vector<SessionCommand> Diff(const ObservedMembers& members,
                                 const DesiredModels& desired) {
  std::vector<SessionCommand> commands;
  std::set<std::pair<MemberKey, std::string>> needed_bundles;
  for (const auto& [session, model] : desired.models) {
    const std::vector<Bundle> bundles = BundlesOf(members, model);
    LoadBundles(model, bundles, &commands);
    TellRouters(members, model, &commands);
    for (const Bundle& bundle : bundles) {
      if (!bundle.wanted && !bundle.in_use) continue;
      needed_bundles.insert({KeyOf(bundle.worker->member), bundle.session});
    }
  }
  ReleaseOthers(members, desired, needed_bundles, &commands);
  return commands;
}

std::map<MemberKey, int64_t> ServedBytes(const ObservedMembers& members,
                                         const DesiredModels& desired) {
  std::map<MemberKey, int64_t> bytes;
  for (const auto& [key, member] : members) {
    if (IsRouter(member)) continue;
    for (const auto& [session, held] : member.sessions) {
      const auto found = desired.models.find(ModelOf(session));
      if (found == desired.models.end()) continue;
      if (IsOfModel(session, held, found->second) && IsLoadedOrLoading(held)) {
        bytes[key] += held.bytes;
      }
    }
  }
  return bytes;
}

std::string BundleSession(const ServedModel& model,
                          const std::vector<int32_t>& experts) {
  uint64_t hash = model.content;
  for (const int32_t expert : experts) hash = FoldIn(hash, expert);
  return absl::StrCat(model.session, "#", absl::Hex(hash, absl::kZeroPad16));
}

v1::SessionInfo DescribeModel(const ServedModel& model,
                              const ObservedMembers& members) {
  v1::SessionInfo info;
  info.set_session(model.session);
  info.set_checkpoint_directory(model.request.checkpoint);
  info.set_replicas(model.replicas);
  info.set_weights(model.plan.router_load.router().model().compute_type());
  *info.mutable_placement() = HeldOf(model, members);
  info.set_state(v1::SessionInfo::LOADING);
  if (model.phase != Phase::kLoading) {
    info.set_state(model.experts > 0 && info.placement().workers().empty()
                       ? v1::SessionInfo::BROKEN
                       : v1::SessionInfo::READY);
  }
  for (const auto& [key, member] : members) {
    if (IsRouter(member) && HasModel(model, Find(member, model.session))) {
      info.add_routers(key.name);
    }
  }
  std::vector<int32_t> counts(model.experts);  // replicas that routers may call
  for (const v1::WorkerPlacement& worker : info.placement().workers()) {
    for (const int32_t expert : worker.experts()) ++counts[expert];
  }
  for (const int32_t count : counts) {
    info.set_experts_unavailable(info.experts_unavailable() + (count == 0));
    info.set_experts_below_replicas(info.experts_below_replicas() +
                                    (count < model.replicas));
  }
  info.set_experts_sharing_domain(CountSharing(model, members));
  return info;
}

}  // namespace gshard
