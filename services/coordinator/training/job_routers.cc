#include "services/coordinator/training/job_routers.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/training/job_recovery.h"

namespace gshard {
namespace {

// Somebody has to mend it first.
constexpr absl::Duration kReloadOfUnfit = absl::Minutes(1);

}  // namespace

void JobRouters::Reconcile() {
  std::set<MemberKey> there;
  for (const Member& router : context_->env.members->Routers()) {
    there.insert(KeyOf(router));
  }
  const auto is_gone = [&](const MemberKey& key) {
    return there.count(key) == 0;
  };
  MemberCommands aborts;
  std::erase_if(routers_, [&](const auto& router) {
    if (!is_gone(router.first)) return false;
    LogWarning("a router of the job was lost, or wants to leave",
               {{"job", context_->job.name}, {"router", router.first.name}});
    AddCommand(aborts, router.first)
        .mutable_abort_session()
        ->set_session(context_->session());
    return true;
  });
  // One that only wants to leave still runs its microbatches.
  Tell(*context_->env.members, std::move(aborts));
  std::erase_if(ready_, is_gone);
  for (const MemberKey& key : there) {
    if (reduction_ != nullptr && !reduction_->RankOf(key).has_value()) {
      continue;  // joined later
    }
    const auto [router, joined] = routers_.try_emplace(key);
    if (joined) Load(key, &router->second);
  }
}

void JobRouters::Load(const MemberKey& key, Router* router) {
  MemberCommands commands;
  v1::LoadSession* const load =
      AddCommand(commands, key).mutable_load_session();
  *load = load_;
  // One that joins late has as little to plan as those that were there.
  v1::RouterSession* const router_load = load->mutable_router();
  router_load->set_step(
      std::max(router_load->step(), context_->checkpoint_step));
  if (reduction_ != nullptr) {
    *router_load->mutable_dense_group() =
        reduction_->GroupOf(*reduction_->RankOf(key));
  }
  *router = {.load =
                 context_->Send(std::move(commands), context_->time_to_index)};
}

absl::Status JobRouters::Poll(bool training) {
  const MonotonicTime now = context_->env.clock();
  for (auto& [key, router] : routers_) {
    if (router.load != nullptr && router.load->decided()) {
      RETURN_IF_ERROR(OnLoaded(key, &router, training));
    } else if (router.again <= now) {
      Load(key, &router);
    }
  }
  return absl::OkStatus();
}

absl::Status JobRouters::OnLoaded(const MemberKey& key, Router* router,
                                  bool training) {
  const auto load = std::exchange(router->load, nullptr);
  const absl::Status& error = load->error;
  if (absl::IsUnavailable(error) && reduction_ == nullptr) {
    LogWarning("a router has not loaded the job; it is asked again if it stays",
               {{"job", context_->job.name}, {"status", error}});
    router->again = context_->env.clock() + kReloadDelay;
    return absl::OkStatus();
  }
  if (absl::IsUnimplemented(error) && reduction_ == nullptr) {
    // Its release derives other segments: left out until it is replaced.
    LogError("a router cannot take part in a job",
             {{"job", context_->job.name}, {"status", error}});
    if (!training) AwaitOthers(key, error);
    return absl::OkStatus();
  }
  const absl::Status taken =
      error.ok() ? Take(key, load->replies[0].session_loaded()) : error;
  if (taken.ok()) {
    context_->unfit_routers.erase(key);
    return taken;
  }
  failed_ = key;
  // One that came later, without the text for example, is not worth the job.
  const bool may_be_unfit =
      (training || context_->begun) && reduction_ == nullptr;
  // Nor is one that has been so all along while the others are away.
  if (!may_be_unfit ||
      !(context_->unfit_routers.contains(key) || HasOthers())) {
    return taken;
  }
  LogError("a router cannot take part in a job; it is asked again if it stays",
           {{"job", context_->job.name}, {"status", taken}});
  context_->unfit_routers.insert(key);
  router->again = context_->env.clock() + kReloadOfUnfit;
  if (error.ok()) {  // it has loaded what it is not to keep
    MemberCommands commands;
    AddCommand(commands, key)
        .mutable_abort_session()
        ->set_session(context_->session());
    Tell(*context_->env.members, std::move(commands));
  }
  if (!training && !HasOthers()) AwaitOthers(key, taken);
  return absl::OkStatus();
}

void JobRouters::AwaitOthers(const MemberKey& key, const absl::Status& why) {
  context_->SetState(
      context_->waiting_state(),
      Annotate(why,
               absl::StrCat("waits for other routers than '", key.name, "'")));
}

bool JobRouters::HasOthers() const {
  return !ready_.empty() ||
         std::any_of(routers_.begin(), routers_.end(), [&](const auto& one) {
           const Router& router = one.second;
           return router.load != nullptr ||
                  (router.again != MonotonicTime::InfiniteFuture() &&
                   !context_->unfit_routers.contains(one.first));
         });
}

absl::Status JobRouters::Take(const MemberKey& key,
                              const v1::SessionLoaded& loaded) {
  RETURN_IF_ERROR(CheckText(key, loaded));
  ready_.push_back(key);
  if (reduction_ == nullptr) return absl::OkStatus();
  return reduction_->OnLoaded(*reduction_->RankOf(key), loaded);
}

absl::Status JobRouters::CheckText(const MemberKey& key,
                                   const v1::SessionLoaded& loaded) {
  if (!loaded.has_text()) return absl::OkStatus();
  const v1::TextLoaded& text = loaded.text();
  if (!context_->text.has_value()) {
    context_->text = text;
    context_->reporter.OnText(text);
    return absl::OkStatus();
  }
  const v1::TextLoaded& first = *context_->text;
  if (text.digest() == first.digest() && text.pairs() == first.pairs() &&
      text.validation_microbatches() == first.validation_microbatches()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "router '", key.name,
      "' reads another text than the job began with: ", "expected ",
      first.pairs(), " pairs and digest ", first.digest().substr(0, 8),
      ", got ", text.pairs(), " and ", text.digest().substr(0, 8),
      "; a file has changed, or is not the same on all machines"));
}

MonotonicTime JobRouters::next() const {
  MonotonicTime next = MonotonicTime::InfiniteFuture();
  for (const auto& [key, router] : routers_) {
    next = std::min(next, router.again);
  }
  return next;
}

std::vector<MemberKey> JobRouters::all() const {
  std::vector<MemberKey> all;
  for (const auto& [key, router] : routers_) all.push_back(key);
  return all;
}

}  // namespace gshard
