#include "services/coordinator/served_model.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/cluster/placement_parts.h"
#include "services/coordinator/fan_out.h"

namespace gshard {
absl::StatusOr<std::shared_ptr<ServedModel>> ServedModel::Create(
    const ServingEnvironment& environment, const std::string& session,
    ServableCheckpoint checkpoint, int32_t replicas, bool standby,
    v1::Placement kept, OnLoaded on_loaded) {
  ASSIGN_OR_RETURN(ServingPlan plan, PlanServing(session, checkpoint.model,
                                                 checkpoint.directory));
  return std::shared_ptr<ServedModel>(new ServedModel(
      environment, session, std::move(checkpoint), replicas, standby,
      std::move(kept), std::move(plan), std::move(on_loaded)));
}

ServedModel::ServedModel(const ServingEnvironment& environment,
                         std::string session, ServableCheckpoint checkpoint,
                         int32_t replicas, bool standby, v1::Placement kept,
                         ServingPlan plan, OnLoaded on_loaded)
    : environment_(environment),
      session_(std::move(session)),
      checkpoint_(std::move(checkpoint)),
      replicas_(replicas),
      adopted_(!kept.workers().empty()),
      kept_(std::move(kept)),
      plan_(std::move(plan)),
      on_loaded_(std::move(on_loaded)),
      standby_(standby) {}

absl::Status ServedModel::Start() {
  const std::vector<Member> workers =
      environment_.members->List(MemberRole::kExpertWorker);
  if (environment_.members->List(MemberRole::kRouter).empty()) {
    return absl::FailedPreconditionError("there is no router");
  }
  if (checkpoint_.model.experts > 0) {
    if (workers.empty()) {
      return absl::FailedPreconditionError("there is no expert worker");
    }
    RETURN_IF_ERROR(WantedLists(workers).status());
  }
  Reconcile();
  return absl::OkStatus();
}

void ServedModel::Send(
    const MemberKey& key, v1::Command command,
    std::function<void(ServedModel&, const absl::Status&)> done) {
  environment_.members->Send(
      key, std::move(command),
      [queue = environment_.queue, model = weak_from_this(),
       done = std::move(done)](const absl::StatusOr<v1::CommandReply>& reply) {
        queue->Post([model, done, status = reply.status()] {
          const std::shared_ptr<ServedModel> self = model.lock();
          if (self != nullptr && !self->released_) done(*self, status);
        });
      });
}

void ServedModel::DropLost() {
  std::set<MemberKey> there;
  for (const Member& member : environment_.members->List()) {
    there.insert(KeyOf(member));
  }
  const auto is_lost = [&](const auto& entry) {
    return there.count(entry.first) == 0;
  };
  const size_t parts = parts_.size();
  std::erase_if(parts_, is_lost);
  std::erase_if(room_, is_lost);
  std::erase_if(routers_, is_lost);
  if (parts_.size() < parts) {
    LogWarning("an expert worker of a served model was lost",
               {{"session", session_}});
  }
}

bool ServedModel::loading_parts() const {
  for (const auto& [key, parts] : parts_) {
    for (const Part& part : parts) {
      if (!part.ready) return true;
    }
  }
  return false;
}

bool ServedModel::loading_kept_parts() const {
  for (const auto& [key, parts] : parts_) {
    for (const Part& part : parts) {
      if (part.kept && !part.ready) return true;
    }
  }
  return false;
}

ServedModel::Part* ServedModel::FindPart(const MemberKey& worker,
                                         int64_t part) {
  const auto found = parts_.find(worker);
  if (found == parts_.end()) return nullptr;
  for (Part& held : found->second) {
    if (held.id == part) return &held;
  }
  return nullptr;
}

void ServedModel::Reconcile() {
  DropLost();
  const std::vector<Member> workers =
      environment_.members->List(MemberRole::kExpertWorker);
  if (checkpoint_.model.experts > 0 && !workers.empty()) {
    LoadKept(workers);
    const absl::StatusOr<ExpertLists> wanted = WantedLists(workers);
    if (!wanted.ok()) {
      if (!may_serve()) return Fail(wanted.status());
      LogError("a served model cannot be placed",
               {{"session", session_}, {"status", wanted.status()}});
    } else {
      for (size_t w = 0; w < workers.size(); ++w) {
        std::vector<Part>& parts = parts_[KeyOf(workers[w])];
        std::vector<std::vector<int32_t>> held;
        for (const Part& part : parts) held.push_back(part.experts);
        PartChange change = PlanParts(held, (*wanted)[w]);
        for (size_t p = 0; p < parts.size(); ++p) {
          parts[p].obsolete = !change.keep[p];
          if (change.keep[p]) parts[p].unused_since = 0;
        }
        if (!change.load.empty()) {
          LoadPart(workers[w], std::move(change.load));
        }
      }
    }
  } else if (!may_serve() && checkpoint_.model.experts > 0) {
    return Fail(absl::UnavailableError("all expert workers were lost"));
  }
  PublishPlacement();
  LoadRouters();
  CheckLoaded();
  RememberHome(workers);
  environment_.on_change();
}

std::vector<int32_t> ServedModel::CountReplicas() const {
  std::vector<int32_t> counts(checkpoint_.model.experts);
  for (const v1::WorkerPlacement& worker : placement_.workers()) {
    for (const int32_t expert : worker.experts()) ++counts[expert];
  }
  return counts;
}

void ServedModel::CheckLoaded() {
  if (released_) return;
  if (!loaded_) {
    if (placement_.version() == 0) return;
    if (loading_parts() && !adopted_) return;
    if (environment_.members->List(MemberRole::kRouter).empty()) {
      if (adopted_) return;
      return Fail(absl::UnavailableError("all routers were lost"));
    }
    int64_t routers = 0;
    for (const auto& [key, router] : routers_) {
      if (router.state == Router::kLeftOut) continue;
      if (router.state == Router::kPaused && adopted_) continue;
      if (router.state != Router::kLoaded) return;
      ++routers;
    }
    if (routers == 0) return;
    OnAllLoaded(routers);
  }
  // What comes before it is released next, so no router may lack it.
  for (const auto& [key, router] : routers_) {
    const bool answers = router.state == Router::kLoaded && router.current;
    const bool cannot =
        router.state == Router::kPaused || router.state == Router::kLeftOut;
    if (!answers && !cannot) return;
  }
  const OnLoaded on_loaded = std::exchange(on_loaded_, nullptr);
  if (on_loaded) on_loaded(absl::OkStatus());
}

void ServedModel::OnAllLoaded(int64_t routers) {
  loaded_ = true;
  LogInfo("model is served",
          {{"session", session_},
           {"checkpoint", checkpoint_.directory},
           {"replicas", replicas_},
           {"routers", routers},
           {"parts", static_cast<int64_t>(placement_.workers_size())}});
  if (!std::exchange(standby_, false)) return;
  for (const auto& [key, router] : routers_) {
    if (router.state == Router::kLoaded) UpdateRouter(key);
  }
}

void ServedModel::Fail(const absl::Status& status) {
  if (may_serve() || released_) return;
  LogError("model cannot be loaded",
           {{"session", session_}, {"status", status}});
  Release(/*abort=*/true);
  const OnLoaded on_loaded = std::exchange(on_loaded_, nullptr);
  if (on_loaded) on_loaded(status);
}

void ServedModel::Release(bool abort) {
  if (released_) return;
  released_ = true;
  environment_.keep_placement(session_, {});
  const auto release = [abort](const std::string& session) {
    v1::Command command;
    if (abort) {
      command.mutable_abort_session()->set_session(session);
    } else {
      command.mutable_unload_session()->set_session(session);
    }
    return command;
  };
  MemberCommands routers, workers;
  for (const auto& [key, router] : routers_) {
    routers.emplace_back(key, release(session_));
  }
  for (const auto& [key, parts] : parts_) {
    for (const Part& part : parts) {
      workers.emplace_back(key, release(part.session));
    }
  }
  Members* const members = environment_.members;
  if (abort) {
    Tell(*members, std::move(routers));
    Tell(*members, std::move(workers));
    return;
  }
  // Calls in flight need the workers until they are done. By then the same
  // version may be served again, by the same sessions.
  Settle(*members, *environment_.queue, std::move(routers),
         [members, is_needed = environment_.is_needed,
          workers = std::move(workers)]() mutable {
           std::erase_if(workers, [&](const auto& command) {
             return is_needed(command.first,
                              command.second.unload_session().session());
           });
           Tell(*members, std::move(workers));
         });
}

bool ServedModel::MayUse(const MemberKey& worker,
                         const std::string& session) const {
  if (session.substr(0, session.find('#')) != session_) return false;
  const auto held = parts_.find(worker);
  if (held != parts_.end()) {
    for (const Part& part : held->second) {
      if (part.session == session) return true;
    }
  }
  if (!loaded_) return true;
  for (const auto& [key, router] : routers_) {
    if (router.state != Router::kLoaded ||
        router.version < placement_.version()) {
      return true;
    }
  }
  return false;
}

v1::SessionInfo ServedModel::Describe() const {
  v1::SessionInfo info;
  info.set_session(session_);
  info.set_state(v1::SessionInfo::LOADING);
  if (loaded_) {
    info.set_state(checkpoint_.model.experts > 0 && placement_.workers().empty()
                       ? v1::SessionInfo::BROKEN
                       : v1::SessionInfo::READY);
  }
  *info.mutable_placement() = placement_;
  for (const auto& [key, router] : routers_) {
    if (router.state == Router::kLoaded) info.add_routers(key.name);
  }
  info.set_checkpoint_directory(checkpoint_.directory);
  info.set_replicas(replicas_);
  for (const int32_t count : CountReplicas()) {
    if (count == 0) {
      info.set_experts_unavailable(info.experts_unavailable() + 1);
    }
    if (count < replicas_) {
      info.set_experts_below_replicas(info.experts_below_replicas() + 1);
    }
  }
  return info;
}

}  // namespace gshard
