#include "tests/services/coordinator/serving_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/coordinator/serving/expert_assignment.h"
#include "services/coordinator/serving/session_events.h"
#include "services/coordinator/serving/worker_departure.h"

namespace gshard {
namespace {

using State = HeldSession::State;

std::string List(const std::vector<int32_t>& experts) {
  return absl::StrJoin(experts, " ");
}

bool Has(const v1::Placement& placement, const ServingWorld::Process& worker,
         const std::string& session) {
  return std::any_of(
      placement.workers().begin(), placement.workers().end(),
      [&](const v1::WorkerPlacement& bundle) {
        return bundle.session() == session &&
               bundle.name() == worker.member.info.id &&
               worker.incarnations.contains(bundle.incarnation());
      });
}

}  // namespace

void ServingWorld::Add(const std::string& name, MemberRole role,
                       int64_t capacity_bytes,
                       const std::string& failure_domain) {
  Member member;
  member.info = {.id = name,
                 .role = role,
                 .address = "unix:/" + name,
                 .capacity_bytes = capacity_bytes,
                 .failure_domain = failure_domain};
  log.push_back(absl::StrCat("  ", name, " joins"));
  processes[name].member = member;
  Join(&processes[name]);
}

void ServingWorld::Join(Process* process) {
  Member& member = process->member;
  member.incarnation = ++last_incarnation_;
  process->incarnations.insert(member.incarnation);
  members[KeyOf(member)].member = member;
}

void ServingWorld::Lose(const std::string& name) {
  CutOff(name);
  log.back() = absl::StrCat("  ", name, " is lost");
  processes.erase(name);
}

void ServingWorld::CutOff(const std::string& name) {
  log.push_back(absl::StrCat("  ", name, " is cut off"));
  const MemberKey key = KeyOf(processes.at(name).member);
  members.erase(key);
  std::erase_if(under_way_,
                [&](const auto& command) { return command.member == key; });
}

void ServingWorld::Rejoin(const std::string& name) {
  log.push_back(absl::StrCat("  ", name, " joins again"));
  // What was decided without it is not undone.
  for (const SessionCommand& command : under_way_) {
    if (command.command.has_unload_session()) late_.insert(command.session);
  }
  Join(&processes.at(name));
}

bool ServingWorld::IsCutOff(const std::string& name) const {
  return !members.contains(KeyOf(processes.at(name).member));
}

void ServingWorld::AskToLeave(const std::string& name) {
  log.push_back(absl::StrCat("  ", name, " wants to leave"));
  Process& process = processes.at(name);
  process.leaving = true;
  for (const auto& [other, heard] : processes) Hear(heard);
}

void ServingWorld::Hear(const Process& process) {
  if (IsCutOff(process.member.info.id)) return;
  ObservedMember& member = members.at(KeyOf(process.member));
  member.member.leaving = process.leaving;
  member.reported = process.sessions;
}

bool ServingWorld::IsCalled(const Process& router,
                            const Process& worker) const {
  return std::any_of(
      router.placements.begin(), router.placements.end(),
      [&](const auto& placement) {
        return router.sessions.contains(placement.first) &&
               std::any_of(worker.sessions.begin(), worker.sessions.end(),
                           [&](const std::string& session) {
                             return ModelOf(session) == placement.first &&
                                    Has(placement.second, worker, session);
                           });
      });
}

void ServingWorld::LetGo() {
  const bool any_stays =
      std::any_of(members.begin(), members.end(),
                  [](const auto& one) { return one.second.takes_experts(); });
  for (const auto& [key, departure] : PlanDepartures(members, desired)) {
    if (!departure.may_leave) continue;
    for (const auto& [name, router] : processes) {
      if (!any_stays || IsCutOff(name) ||
          !IsCalled(router, processes.at(key.name))) {
        continue;
      }
      violations.push_back(
          absl::StrCat(name, " calls ", key.name, ", which was let go"));
    }
    Lose(key.name);
  }
}

ServedModel& ServingWorld::Want(const std::string& session, int32_t experts,
                                int32_t replicas, uint64_t content) {
  ServedModel model;
  model.session = session;
  model.request.name = ModelNameOf(session);
  model.number = ++last_number_;
  model.plan.router_load.set_session(session);
  model.plan.router_load.mutable_router();
  model.plan.worker_load.mutable_worker();
  model.plan.expert_bytes = 1;
  model.content = content;
  model.experts = experts;
  model.replicas = replicas;
  for (const auto& [other, wanted] : desired.models) {
    model.standby = model.standby || ModelNameOf(other) == ModelNameOf(session);
  }
  log.push_back(absl::StrCat("  wanted: ", session));
  return desired.models[session] = std::move(model);
}

std::string ServingWorld::Text(const v1::Placement& placement) {
  std::vector<std::string> bundles;
  for (const v1::WorkerPlacement& bundle : placement.workers()) {
    bundles.push_back(absl::StrCat(bundle.name(), ": ",
                                   absl::StrJoin(bundle.experts(), " ")));
  }
  return absl::StrJoin(bundles, ", ");
}

std::string ServingWorld::Text(const SessionCommand& command) const {
  const auto bundle = bundles_.find(command.session);
  const std::string who = command.member.name;
  const std::string what = absl::StrCat(
      ModelOf(command.session),
      bundle == bundles_.end() ? "" : " {" + List(bundle->second) + "}");
  const auto router = [&](const char* verb, const v1::Placement& placement,
                          bool standby) {
    return absl::StrCat(who, verb, what, " {", Text(placement), "}",
                        standby ? " standby" : "");
  };
  if (command.command.has_unload_session()) {
    return absl::StrCat(who, " unload ", what);
  }
  if (command.command.has_update_placement()) {
    return router(" tell ", command.command.update_placement().placement(),
                  !command.command.update_placement().current());
  }
  const v1::LoadSession& load = command.command.load_session();
  if (load.has_worker()) return absl::StrCat(who, " load ", what);
  return router(" load ", load.router().placement(), load.router().standby());
}

std::vector<std::string> ServingWorld::Decide() {
  for (auto& [key, member] : members) member.promised_bytes = 0;
  for (auto& [session, model] : desired.models) FindKept(&model, &members);
  for (auto& [session, model] : desired.models) {
    const bool answered = model.phase == ServedModel::Phase::kAnswering;
    Advance(members, ++last_version_, &model);
    PromiseRoom(model, &members);
    if (!model.failure.ok()) ended[session] = model.failure;
    if (answered || model.phase != ServedModel::Phase::kAnswering) continue;
    for (const auto& [other, earlier] : desired.models) {
      if (ModelNameOf(other) == ModelNameOf(session) &&
          earlier.number < model.number) {
        ended[other] = absl::CancelledError("replaced");
      }
    }
  }
  for (const auto& [session, why] : ended) desired.models.erase(session);
  std::vector<std::string> sent;
  for (const SessionCommand& command : Diff(members, desired)) {
    const auto same = [&](const SessionCommand& other) {
      return other.member == command.member && other.session == command.session;
    };
    EXPECT_EQ(std::count_if(under_way_.begin(), under_way_.end(), same), 0)
        << Text(command);
    const auto model = desired.models.find(ModelOf(command.session));
    HeldSession& held = members.at(command.member).sessions[command.session];
    OnSent(command.command,
           model == desired.models.end() ? nullptr : &model->second, &held);
    if (!held.experts.empty()) bundles_[command.session] = held.experts;
    under_way_.push_back(command);
    log.push_back(Text(command));
    sent.push_back(Text(command));
  }
  std::sort(sent.begin(), sent.end());
  LetGo();
  return sent;
}

std::vector<std::string> ServingWorld::UnderWay() const {
  std::vector<std::string> texts;
  for (const SessionCommand& command : under_way_) {
    texts.push_back(absl::StrCat(command.member.name, " ", command.session));
  }
  return texts;
}

void ServingWorld::CheckRelease(const Process& process,
                                const std::string& session) {
  const std::string model = ModelOf(session);
  if (late_.erase(session) > 0) return;
  if (process.member.info.role == MemberRole::kRouter) {
    // The router must answer for the name with another version, if it can.
    const auto has = [&](const auto& entry) {
      const HeldSession& held =
          members.at(KeyOf(process.member)).sessions[entry.first];
      return ModelNameOf(entry.first) != ModelNameOf(session) ||
             (entry.second.content == held.content &&
              process.Answers(entry.first)) ||
             held.state == State::kPaused || held.state == State::kLeftOut;
    };
    if (process.Answers(session) && !desired.models.contains(session) &&
        !std::any_of(desired.models.begin(), desired.models.end(), has) &&
        !desired.models.empty()) {
      violations.push_back(process.member.info.id + " lost " + session);
    }
    return;
  }
  for (const auto& [name, router] : processes) {
    const auto placement = router.placements.find(model);
    if (!IsCutOff(name) && router.sessions.contains(model) &&
        placement != router.placements.end() &&
        Has(placement->second, process, session)) {
      violations.push_back(absl::StrCat(name, " calls ", process.member.info.id,
                                        " which lost ", session));
    }
  }
}

absl::Status ServingWorld::Do(Process& process, const SessionCommand& command) {
  const std::string& session = command.session;
  const v1::Command& message = command.command;
  if (message.has_unload_session()) {
    CheckRelease(process, session);
    process.sessions.erase(session);
    process.placements.erase(session);
    process.standbys.erase(session);
    return absl::OkStatus();
  }
  if (message.has_update_placement()) {
    if (!process.sessions.contains(session)) return absl::NotFoundError("");
    process.placements[session] = message.update_placement().placement();
    if (message.update_placement().current()) process.standbys.erase(session);
    return absl::OkStatus();
  }
  const v1::LoadSession& load = message.load_session();
  if (load.has_router() && !process.sessions.contains(session)) {
    for (const v1::WorkerPlacement& bundle :
         load.router().placement().workers()) {
      const auto worker = processes.find(bundle.name());
      if (worker == processes.end() ||
          !worker->second.incarnations.contains(bundle.incarnation())) {
        return absl::UnavailableError("a worker is not reached");
      }
    }
  }
  const bool added = process.sessions.insert(session).second;
  if (load.has_router()) {
    if (added) process.placements[session] = load.router().placement();
    if (added && load.router().standby()) process.standbys.insert(session);
    if (!load.router().standby()) process.standbys.erase(session);
  }
  return added ? absl::OkStatus() : absl::AlreadyExistsError("");
}

std::vector<SessionCommand>::const_iterator ServingWorld::FindUnderWay(
    const std::string& member, const std::string& session) const {
  return std::find_if(under_way_.begin(), under_way_.end(),
                      [&](const SessionCommand& command) {
                        return command.member.name == member &&
                               (command.session == session ||
                                ModelOf(command.session) == session);
                      });
}

bool ServingWorld::IsRelease(const std::string& member,
                             const std::string& session) const {
  return FindUnderWay(member, session)->command.has_unload_session();
}

void ServingWorld::Answer(const std::string& member, const std::string& session,
                          const absl::Status& status) {
  const auto found = FindUnderWay(member, session);
  ASSERT_NE(found, under_way_.end()) << member << " " << session;
  const SessionCommand command = *found;
  under_way_.erase(found);
  Process& process = processes.at(member);
  const absl::Status outcome = status.ok() ? Do(process, command) : status;
  log.push_back(absl::StrCat("  ", Text(command), ": ", outcome.ToString()));
  const auto model = desired.models.find(ModelOf(command.session));
  OnReplied(outcome, process.member.info.role, absl::Seconds(1),
            model == desired.models.end() ? nullptr : &model->second,
            &members.at(command.member).sessions[command.session]);
  Hear(process);
}

std::vector<std::string> ServingWorld::Settle() {
  std::vector<std::string> all;
  for (int round = 0; round < 100; ++round) {
    const size_t before = processes.size();
    const std::vector<std::string> sent = Decide();
    all.insert(all.end(), sent.begin(), sent.end());
    if (under_way_.empty() && processes.size() == before) return all;
    while (!under_way_.empty()) {
      const SessionCommand next = under_way_.front();
      Answer(next.member.name, next.session);
    }
  }
  ADD_FAILURE() << "it does not end: " << absl::StrJoin(all, "\n");
  return all;
}

void ServingWorld::EndPauses() {
  for (auto& [session, model] : desired.models) model.settling = false;
  for (auto& [key, member] : members) {
    for (auto& [session, held] : member.sessions) {
      if (held.state == State::kPaused || held.state == State::kWaiting) {
        held.state = State::kUnknown;
      }
    }
  }
}

void ServingWorld::Look() {
  std::map<std::string, std::set<std::string>> sessions;
  for (const auto& [name, process] : processes) {
    sessions[name] = process.sessions;
    Hear(process);
  }
  OnHeartbeats(sessions, &members);
}

void ServingWorld::Restart() {
  const DesiredModels before = std::exchange(desired, {});
  members.clear();
  under_way_.clear();
  log.push_back("  another coordinator");
  for (auto& [name, process] : processes) {
    Join(&process);
    members[KeyOf(process.member)].reported = process.sessions;
  }
  for (const auto& [session, model] : before.models) {
    // A model is stored once it is served, and a placement as it is made.
    if (model.phase != ServedModel::Phase::kAnswering && !model.adopted) {
      continue;
    }
    ServedModel& again =
        Want(session, model.experts, model.replicas, model.content);
    Adopt(model.placement, &again);
    for (auto& [other, kept] : before.models) {
      again.standby =
          again.standby ||
          (other != session && ModelNameOf(other) == ModelNameOf(session));
    }
    FindKept(&again, &members);
  }
}

}  // namespace gshard
