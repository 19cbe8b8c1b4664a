#include "services/coordinator/served_models.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

absl::Status CheckName(absl::string_view field, const std::string& name) {
  const bool sound =
      !name.empty() && name.size() <= 128 &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
      });
  if (sound) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field,
                   ": expected 1 to 128 letters, digits, '.', '_' or "
                   "'-', got '",
                   absl::CHexEscape(name), "'"));
}

}  // namespace

ServedModels::Served* ServedModels::Find(const std::string& session,
                                         int64_t attempt) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.attempt != attempt) {
    return nullptr;
  }
  return &found->second;
}

void ServedModels::Load(const std::string& name, const std::string& version,
                        const std::string& checkpoint_directory,
                        OnLoaded done) {
  absl::Status sound = CheckName("name", name);
  if (sound.ok() && !version.empty()) sound = CheckName("version", version);
  if (sound.ok() && checkpoint_directory.empty()) {
    sound = absl::InvalidArgumentError(
        "checkpoint_directory: expected a path, got nothing");
  }
  if (!sound.ok()) return done(sound);
  absl::StatusOr<ServableCheckpoint> checkpoint =
      OpenToServe(checkpoint_directory);
  if (!checkpoint.ok()) return done(checkpoint.status());
  const std::string session = absl::StrCat(
      name, "@", version.empty() ? absl::StrCat(checkpoint->step) : version);
  Served& served = sessions_[session];
  if (served.attempt != 0) {
    if (served.state == v1::SessionInfo::READY) return done(session);
    if (served.state == v1::SessionInfo::LOADING) {
      served.waiting.push_back(std::move(done));
      return;
    }
  }
  served.name = name;
  served.checkpoint = *std::move(checkpoint);
  served.waiting.push_back(std::move(done));
  const absl::Status begun = Begin(session, &served);
  if (!begun.ok()) Fail(session, begun);
}

absl::Status ServedModels::Begin(const std::string& session, Served* served) {
  if (served->attempt != 0) TellAll(session, *served, /*abort=*/true);
  served->attempt = ++last_attempt_;
  served->state = v1::SessionInfo::LOADING;
  served->routers.clear();
  served->loading.clear();
  served->plan = {};
  const std::vector<Member> workers = members_->List(MemberRole::kExpertWorker);
  if (members_->List(MemberRole::kRouter).empty()) {
    return absl::FailedPreconditionError("there is no router");
  }
  if (workers.empty() && served->checkpoint.model.experts > 0) {
    return absl::FailedPreconditionError("there is no expert worker");
  }
  ASSIGN_OR_RETURN(served->plan,
                   PlanServing(session, served->checkpoint.model,
                               served->checkpoint.directory, workers,
                               next_placement_version_()));
  Publish();
  MemberCommands commands;
  for (size_t w = 0; w < served->plan.workers.size(); ++w) {
    commands.emplace_back(served->plan.workers[w], v1::Command());
    commands.back().second.mutable_load_session()->Swap(
        &served->plan.worker_loads[w]);
  }
  served->plan.worker_loads.clear();
  FanOut(*members_, *queue_, std::move(commands),
         [this, session, attempt = served->attempt](
             const absl::StatusOr<std::vector<v1::CommandReply>>& replies) {
           Served* const served = Find(session, attempt);
           if (served == nullptr) return;
           if (!replies.ok()) return Fail(session, replies.status());
           LoadRouters(session, served);
           CheckReady(session, served);
         });
  return absl::OkStatus();
}

void ServedModels::LoadRouters(const std::string& session, Served* served) {
  for (const Member& member : members_->List(MemberRole::kRouter)) {
    const MemberKey key = KeyOf(member);
    if (served->routers.count(key) || !served->loading.insert(key).second) {
      continue;
    }
    v1::Command command;
    *command.mutable_load_session() = served->plan.router_load;
    members_->Send(
        key, std::move(command),
        [this, session, key, attempt = served->attempt](
            const absl::StatusOr<v1::CommandReply>& reply) {
          queue_->Post([this, session, key, attempt, status = reply.status()] {
            OnRouterLoaded(session, attempt, key, status);
          });
        });
  }
}

void ServedModels::OnRouterLoaded(const std::string& session, int64_t attempt,
                                  const MemberKey& router,
                                  const absl::Status& status) {
  Served* const served = Find(session, attempt);
  if (served == nullptr || served->loading.erase(router) == 0) return;
  if (status.ok()) {
    served->routers.insert(router);
    Publish();
  } else if (served->state == v1::SessionInfo::READY) {
    LogError("a router cannot load a model",
             {{"session", session}, {"status", status}});
    return;
  } else if (!absl::IsUnavailable(status)) {  // else it was lost
    return Fail(session, status);
  }
  CheckReady(session, served);
}

void ServedModels::CheckReady(const std::string& session, Served* served) {
  if (served->state != v1::SessionInfo::LOADING || !served->loading.empty()) {
    return;
  }
  if (served->routers.empty()) {
    return Fail(session, absl::UnavailableError("all routers were lost"));
  }
  served->state = v1::SessionInfo::READY;
  served->was_ready = true;
  LogInfo("model is served", {{"session", session},
                              {"checkpoint", served->checkpoint.directory},
                              {"routers", served->routers.size()},
                              {"workers", served->plan.workers.size()}});
  std::vector<std::string> replaced;
  for (const auto& [other, info] : sessions_) {
    if (other != session && info.name == served->name &&
        info.attempt < served->attempt) {
      replaced.push_back(other);
    }
  }
  const std::vector<OnLoaded> waiting = std::move(served->waiting);
  served->waiting.clear();
  for (const std::string& other : replaced) (void)Unload(other);
  Publish();
  for (const OnLoaded& done : waiting) done(session);
}

void ServedModels::Fail(const std::string& session,
                        const absl::Status& status) {
  Served& served = sessions_.at(session);
  LogError("model cannot be loaded",
           {{"session", session}, {"status", status}});
  const std::vector<OnLoaded> waiting = std::move(served.waiting);
  served.waiting.clear();
  TellAll(session, served, /*abort=*/true);
  if (served.was_ready) {  // it may work again when members change
    served.attempt = ++last_attempt_;
    served.state = v1::SessionInfo::BROKEN;
    served.loading.clear();
    served.routers.clear();
    served.plan = {};
  } else {
    sessions_.erase(session);
  }
  Publish();
  for (const OnLoaded& done : waiting) done(status);
}

absl::Status ServedModels::Unload(const std::string& session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "session: no model '", absl::CHexEscape(session), "' is loaded"));
  }
  TellAll(session, found->second, /*abort=*/false);
  const std::vector<OnLoaded> waiting = std::move(found->second.waiting);
  sessions_.erase(found);
  Publish();
  LogInfo("model unloaded", {{"session", session}});
  for (const OnLoaded& done : waiting) {
    done(absl::CancelledError("the model was unloaded"));
  }
  return absl::OkStatus();
}

void ServedModels::TellAll(const std::string& session, const Served& served,
                           bool abort) {
  // Routers first: calls in flight need the workers until they are done.
  MemberCommands commands;
  const auto add = [&](const MemberKey& key) {
    commands.emplace_back(key, v1::Command());
    v1::Command& command = commands.back().second;
    if (abort) {
      command.mutable_abort_session()->set_session(session);
    } else {
      command.mutable_unload_session()->set_session(session);
    }
  };
  for (const MemberKey& key : served.routers) add(key);
  for (const MemberKey& key : served.loading) add(key);
  MemberCommands workers;
  std::swap(workers, commands);
  for (const MemberKey& key : served.plan.workers) add(key);
  std::swap(workers, commands);
  if (abort) {
    Tell(*members_, std::move(commands));
    Tell(*members_, std::move(workers));
    return;
  }
  FanOut(*members_, *queue_, std::move(commands),
         [this, workers = std::move(workers)](
             const absl::StatusOr<std::vector<v1::CommandReply>>&) {
           Tell(*members_, workers);
         });
}

void ServedModels::OnMembersChanged() {
  const std::vector<Member> members = members_->List();
  const auto is_there = [&](const MemberKey& key) {
    return std::any_of(members.begin(), members.end(),
                       [&](const Member& m) { return KeyOf(m) == key; });
  };
  std::vector<std::string> broken;
  for (auto& [session, served] : sessions_) {
    if (served.state == v1::SessionInfo::LOADING) continue;  // replies tell
    if (served.state == v1::SessionInfo::READY) {
      std::erase_if(served.routers,
                    [&](const MemberKey& key) { return !is_there(key); });
      if (std::all_of(served.plan.workers.begin(), served.plan.workers.end(),
                      is_there)) {
        LoadRouters(session, &served);
        continue;
      }
      LogWarning("an expert worker of a served model was lost",
                 {{"session", session}});
      served.state = v1::SessionInfo::BROKEN;
    }
    broken.push_back(session);
  }
  for (const std::string& session : broken) {
    Served& served = sessions_.at(session);
    const absl::Status begun = Begin(session, &served);
    if (!begun.ok()) Fail(session, begun);
  }
  Publish();
}

void ServedModels::Publish() {
  std::vector<v1::SessionInfo> infos;
  for (const auto& [session, served] : sessions_) {
    v1::SessionInfo& info = infos.emplace_back();
    info.set_session(session);
    info.set_state(served.state);
    *info.mutable_placement() = served.plan.placement();
    for (const MemberKey& router : served.routers) {
      info.add_routers(router.name);
    }
    info.set_checkpoint_directory(served.checkpoint.directory);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  published_ = std::move(infos);
}

std::vector<v1::SessionInfo> ServedModels::Describe() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return published_;
}

}  // namespace gshard
