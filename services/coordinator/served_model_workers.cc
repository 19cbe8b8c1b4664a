// The workers' side of ServedModel: which experts they should have, and what is
// loaded there.

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/coordinator/served_model.h"

namespace gshard {
namespace {

// What a worker reads from a checkpoint in a second, for judging moves.
constexpr double kLoadBytesPerSecond = 200e6;

// Sets of workers of which the placement is remembered, and how much worse it
// may be than what would be moved to: less than moving is worth.
constexpr size_t kMaxHomes = 16;
constexpr double kHomeCost = 1.1;

// The same content, the same name: whoever has the session already, has what is
// asked for.
std::string PartSession(const v1::LoadSession& router_load,
                        const std::vector<int32_t>& experts) {
  const v1::RouterSession& router = router_load.router();
  uint64_t hash = FoldIn(router.segments_key(), router.checkpoint_directory());
  for (const int32_t expert : experts) hash = FoldIn(hash, expert);
  return absl::StrCat(router_load.session(), "#",
                      absl::Hex(hash, absl::kZeroPad16));
}

std::vector<std::string> NamesOf(const std::vector<Member>& workers) {
  std::vector<std::string> names;
  for (const Member& worker : workers) names.push_back(worker.info.id);
  return names;
}

}  // namespace

absl::StatusOr<ExpertLists> ServedModel::WantedLists(
    const std::vector<Member>& workers) const {
  ReplicaProblem problem;
  problem.num_experts = static_cast<int32_t>(checkpoint_.model.experts);
  problem.replicas = replicas_;
  problem.load = load_;
  ExpertLists lists(workers.size());
  bool anything = false;
  for (size_t w = 0; w < workers.size(); ++w) {
    const MemberKey key = KeyOf(workers[w]);
    ReplicaProblem::Worker& worker = problem.workers.emplace_back();
    if (workers[w].info.capacity_bytes > 0) {
      worker.max_experts = static_cast<int32_t>(
          std::min<int64_t>(workers[w].info.capacity_bytes /
                                std::max<int64_t>(plan_.expert_bytes, 1),
                            problem.num_experts));
    }
    const auto room = room_.find(key);
    if (room != room_.end()) {
      worker.max_experts = std::min(worker.max_experts, room->second);
    }
    const auto held = parts_.find(key);
    if (held == parts_.end()) continue;
    std::set<int32_t> experts;
    for (const Part& part : held->second) {
      if (part.obsolete || part.unused_since > 0) continue;
      experts.insert(part.experts.begin(), part.experts.end());
    }
    lists[w].assign(experts.begin(), experts.end());
    anything = anything || !experts.empty();
  }
  if (anything) {
    lists = RepairReplicas(problem, std::move(lists));
    const auto even = static_cast<int32_t>(
        (problem.num_experts * replicas_ + workers.size() - 1) /
        workers.size());
    lists = ImproveReplicas(
        problem, lists,
        {.max_moves = std::max(even, 8),
         .seconds_per_move =
             static_cast<double>(plan_.expert_bytes) / kLoadBytesPerSecond});
  } else {
    ASSIGN_OR_RETURN(lists, PlaceReplicas(problem));
  }
  const auto home = homes_.find(NamesOf(workers));
  if (home == homes_.end() || PlacementCost(problem, home->second) >
                                  kHomeCost * PlacementCost(problem, lists)) {
    return lists;
  }
  for (size_t w = 0; w < workers.size(); ++w) {
    if (static_cast<int64_t>(home->second[w].size()) >
        problem.workers[w].max_experts) {
      return lists;
    }
  }
  return home->second;
}

void ServedModel::SetLoad(std::vector<double> load) {
  if (load.size() != static_cast<size_t>(checkpoint_.model.experts)) {
    load.clear();
  }
  load_ = std::move(load);
}

void ServedModel::LoadKept(const std::vector<Member>& workers) {
  if (kept_.workers().empty()) return;
  std::map<std::string, const Member*> by_name;
  for (const Member& worker : workers) by_name[worker.info.id] = &worker;
  v1::Placement others;
  for (const v1::WorkerPlacement& part : kept_.workers()) {
    const auto worker = by_name.find(part.name());
    if (worker == by_name.end()) {
      *others.add_workers() = part;
      continue;
    }
    std::set<int32_t> experts(part.experts().begin(), part.experts().end());
    const auto valid = [&](int32_t expert) {
      return expert >= 0 && expert < checkpoint_.model.experts;
    };
    std::erase_if(experts, [&](int32_t expert) { return !valid(expert); });
    for (const Part& held : parts_[KeyOf(*worker->second)]) {
      for (const int32_t expert : held.experts) experts.erase(expert);
    }
    if (experts.empty()) continue;
    LoadPart(*worker->second, {experts.begin(), experts.end()}, /*kept=*/true);
  }
  kept_ = std::move(others);
}

void ServedModel::LoadPart(const Member& worker, std::vector<int32_t> experts,
                           bool kept) {
  const MemberKey key = KeyOf(worker);
  Part part;
  part.id = ++last_part_;
  part.kept = kept;
  part.session = PartSession(plan_.router_load, experts);
  v1::Command command;
  v1::LoadSession& load = *command.mutable_load_session();
  load = plan_.worker_load;
  load.set_session(part.session);
  load.mutable_worker()->mutable_experts()->Add(experts.begin(), experts.end());
  part.experts = std::move(experts);
  parts_[key].push_back(part);
  Send(key, std::move(command),
       [key, id = part.id](ServedModel& model, const absl::Status& status) {
         model.OnPartLoaded(key, id, status);
       });
}

void ServedModel::OnPartLoaded(const MemberKey& worker, int64_t id,
                               const absl::Status& status) {
  Part* const part = FindPart(worker, id);
  if (part == nullptr) return;  // the worker was lost
  // Another coordinator had it loaded.
  if (status.ok() || absl::IsAlreadyExists(status)) {
    part->ready = true;
    refusals_.erase(worker.name);
    return Reconcile();
  }
  const bool unavailable = absl::IsUnavailable(status);
  const int refusals = ++refusals_[worker.name];
  if (!may_serve() && (!unavailable || refusals > kMaxRefusals)) {
    return Fail(status);
  }
  LogError("a worker cannot load experts of a served model",
           {{"session", session_}, {"status", status}});
  if (unavailable) {
    // Until then it counts as being loaded, but routers are not kept waiting.
    part->kept = false;
    return RetryPart(worker, id, RetryPause(unavailable, refusals));
  }
  std::vector<Part>& parts = parts_[worker];
  std::erase_if(parts, [&](const Part& other) { return other.id == id; });
  // It keeps what it has, for a while.
  int32_t held = 0;
  for (const Part& other : parts) {
    if (!other.obsolete) held += static_cast<int32_t>(other.experts.size());
  }
  room_[worker] = held;
  RetryPart(worker, id, RetryPause(unavailable, refusals));
  Reconcile();
}

void ServedModel::RetryPart(const MemberKey& worker, int64_t part,
                            absl::Duration pause) {
  environment_.queue->PostAfter(
      pause, [model = weak_from_this(), worker, part] {
        const std::shared_ptr<ServedModel> self = model.lock();
        if (self == nullptr || self->released_) return;
        self->room_.erase(worker);
        const auto held = self->parts_.find(worker);
        if (held != self->parts_.end()) {
          std::erase_if(held->second,
                        [part](const Part& one) { return one.id == part; });
        }
        self->Reconcile();
      });
}

absl::Duration ServedModel::RetryPause(bool unavailable, int refusals) const {
  if (!unavailable) return environment_.retry_pause;
  return refusals <= kMaxRefusals ? absl::Milliseconds(200) : absl::Seconds(10);
}

void ServedModel::RememberHome(const std::vector<Member>& workers) {
  if (!loaded_ || loading_parts()) return;
  ExpertLists lists;
  std::vector<size_t> counts(checkpoint_.model.experts);
  for (const Member& worker : workers) {
    std::vector<int32_t>& list = lists.emplace_back();
    for (const Part& part : parts_[KeyOf(worker)]) {
      if (part.unused_since > 0 || part.obsolete) continue;
      list.insert(list.end(), part.experts.begin(), part.experts.end());
      for (const int32_t expert : part.experts) ++counts[expert];
    }
    std::sort(list.begin(), list.end());
  }
  for (const size_t count : counts) {
    if (count < std::min<size_t>(replicas_, workers.size())) return;
  }
  if (homes_.size() >= kMaxHomes) homes_.clear();
  homes_[NamesOf(workers)] = std::move(lists);
}

}  // namespace gshard
