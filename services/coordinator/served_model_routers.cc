// The routers' side of ServedModel: who knows which placement, and what may be
// released.

#include <algorithm>

#include "services/base/log.h"
#include "services/coordinator/served_model.h"

namespace gshard {

void ServedModel::PublishPlacement() {
  // What is obsolete serves on until its successors are loaded, and those that
  // have nothing to add wait for the others.
  const bool loading = loading_parts();
  const auto adds_nothing = [](const std::vector<Part>& parts,
                               const Part& part) {
    return std::any_of(parts.begin(), parts.end(), [&](const Part& other) {
      return other.obsolete && other.ready && other.unused_since == 0 &&
             std::includes(other.experts.begin(), other.experts.end(),
                           part.experts.begin(), part.experts.end());
    });
  };
  v1::Placement placement;
  std::vector<Part*> unused;
  for (const Member& member :
       environment_.members->List(MemberRole::kExpertWorker)) {
    const MemberKey key = KeyOf(member);
    const auto held = parts_.find(key);
    if (held == parts_.end()) continue;
    for (Part& part : held->second) {
      if (!part.ready || part.unused_since > 0) continue;
      if (part.obsolete && !loading) {
        unused.push_back(&part);
        continue;
      }
      if (!part.obsolete && loading && adds_nothing(held->second, part)) {
        continue;
      }
      v1::WorkerPlacement* const out = placement.add_workers();
      out->set_name(member.info.id);
      out->set_address(member.info.address);
      out->mutable_experts()->Add(part.experts.begin(), part.experts.end());
      out->set_session(part.session);
      out->set_incarnation(key.incarnation);
    }
  }
  placement.set_version(placement_.version());
  if (placement_.version() == 0 ||
      placement.SerializeAsString() != placement_.SerializeAsString()) {
    // Routers first learn of a model when all of it is there, and of what they
    // have already when it has been found again.
    if (!loaded_ && (adopted_ ? loading_kept_parts() : loading)) return;
    placement.set_version(environment_.next_placement_version());
    placement_ = placement;
    environment_.keep_placement(session_, placement_);
    for (const auto& [key, router] : routers_) {
      if (router.state == Router::kLoaded) UpdateRouter(key);
    }
  }
  // What became obsolete while it was loaded was never in a placement.
  for (Part* const part : unused) part->unused_since = placement_.version();
  ReleaseUnused();
}

void ServedModel::UpdateRouter(const MemberKey& key) {
  v1::Command command;
  command.mutable_update_placement()->set_session(session_);
  *command.mutable_update_placement()->mutable_placement() = placement_;
  command.mutable_update_placement()->set_current(!standby_);
  Send(key, std::move(command),
       [key, version = placement_.version(), current = !standby_](
           ServedModel& model, const absl::Status& status) {
         model.OnRouterUpdated(key, version, current, status);
       });
}

void ServedModel::OnRouterUpdated(const MemberKey& router, int64_t version,
                                  bool current, const absl::Status& status) {
  const auto found = routers_.find(router);
  if (found == routers_.end()) return;  // it was lost
  if (status.ok()) {
    found->second.version = std::max(found->second.version, version);
    found->second.current = found->second.current || current;
    ReleaseUnused();
    return CheckLoaded();
  }
  LogError("a router cannot follow a placement",
           {{"session", session_}, {"status", status}});
  routers_.erase(found);
  Reconcile();
}

void ServedModel::LoadRouters() {
  if (placement_.version() == 0) return;
  for (const Member& member : environment_.members->List(MemberRole::kRouter)) {
    const MemberKey key = KeyOf(member);
    const auto [entry, added] = routers_.try_emplace(key);
    if (!added) continue;
    v1::Command command;
    v1::LoadSession& load = *command.mutable_load_session();
    load = plan_.router_load;
    *load.mutable_router()->mutable_placement() = placement_;
    load.mutable_router()->set_standby(standby_);
    Send(key, std::move(command),
         [key, version = placement_.version(), current = !standby_](
             ServedModel& model, const absl::Status& status) {
           model.OnRouterLoaded(key, version, current, status);
         });
  }
}

void ServedModel::OnRouterLoaded(const MemberKey& key, int64_t version,
                                 bool current, const absl::Status& status) {
  const auto found = routers_.find(key);
  if (found == routers_.end()) return;  // it was lost
  Router& router = found->second;
  if (status.ok() || absl::IsAlreadyExists(status)) {
    router.state = Router::kLoaded;
    refusals_.erase(key.name);
    // What it has already is of another coordinator's doing.
    router.version = status.ok() ? version : 0;
    router.current = status.ok() && current;
    const bool becomes_current = !standby_ && !router.current;
    if (router.version < placement_.version() || becomes_current) {
      UpdateRouter(key);
    }
    return Reconcile();
  }
  LogError("a router cannot load a model",
           {{"session", session_}, {"status", status}});
  if (absl::IsUnimplemented(status)) {  // until it is replaced
    router.state = Router::kLeftOut;
    return Reconcile();
  }
  // Unavailable: it cannot reach a worker, which may have been lost meanwhile.
  const bool unavailable = absl::IsUnavailable(status);
  const int refusals = ++refusals_[key.name];
  if (!may_serve() && (!unavailable || refusals > kMaxRefusals)) {
    return Fail(status);
  }
  router.state = Router::kPaused;
  CheckLoaded();
  environment_.queue->PostAfter(
      RetryPause(unavailable, refusals), [model = weak_from_this(), key] {
        const std::shared_ptr<ServedModel> self = model.lock();
        if (self == nullptr || self->released_) return;
        const auto found = self->routers_.find(key);
        if (found != self->routers_.end() &&
            found->second.state == Router::kPaused) {
          self->routers_.erase(found);
        }
        self->Reconcile();
      });
}

void ServedModel::ReleaseUnused() {
  int64_t oldest = placement_.version();
  for (const auto& [key, router] : routers_) {
    if (router.state == Router::kPaused || router.state == Router::kLeftOut) {
      continue;
    }
    oldest = std::min(oldest, router.version);
  }
  for (auto& [key, parts] : parts_) {
    for (auto part = parts.begin(); part != parts.end();) {
      if (part->unused_since == 0 || part->unused_since > oldest) {
        ++part;
        continue;
      }
      // Calls in flight are finished there.
      v1::Command command;
      command.mutable_unload_session()->set_session(part->session);
      Send(key, std::move(command), [](ServedModel&, const absl::Status&) {});
      part = parts.erase(part);
    }
  }
}

}  // namespace gshard
