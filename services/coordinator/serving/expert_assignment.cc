#include "services/coordinator/serving/expert_assignment.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "services/base/status_macros.h"

namespace gshard {
namespace {

// Bytes per second that a worker reads from a checkpoint, for evaluating moves.
constexpr double kLoadBytesPerSecond = 200e6;

// Number of worker sets whose placement is remembered, and how much worse it
// may be than the target of a move: less than a move is worth.
constexpr size_t kMaxHomes = 16;
constexpr double kHomeCost = 1.1;

// Replicas of each expert.
std::vector<size_t> CountReplicas(const ServedModel& model,
                                  const ExpertLists& lists) {
  std::vector<size_t> counts(model.experts);
  for (const std::vector<int32_t>& list : lists) {
    for (const int32_t expert : list) ++counts[expert];
  }
  return counts;
}

// Experts on leaving workers that routers call, to be kept there while `lists`,
// of the staying workers, have too few replicas.
ExpertAssignment Remaining(const ServedModel& model,
                           const ObservedMembers& members,
                           const ExpertLists& lists) {
  const std::vector<size_t> counts = CountReplicas(model, lists);
  const size_t least =
      std::clamp<size_t>(lists.size(), 1, static_cast<size_t>(model.replicas));
  ExpertAssignment remaining;
  for (const auto& [key, worker] : members) {
    if (!worker.member.leaving) continue;
    std::set<int32_t> in_use;
    for (const auto& [session, held] : worker.sessions) {
      if (IsOfModel(session, held, model) && IsLoadedOrLoading(held) &&
          IsPlaced(model, key.name, session)) {
        in_use.insert(held.experts.begin(), held.experts.end());
      }
    }
    if (std::any_of(in_use.begin(), in_use.end(),
                    [&](int32_t e) { return counts[e] < least; })) {
      remaining[key] = {in_use.begin(), in_use.end()};
    }
  }
  return remaining;
}

// Loaded or loading.
std::set<int32_t> ExpertsOn(const ObservedMember& worker,
                            const ServedModel& model) {
  std::set<int32_t> experts;
  for (const auto& [session, held] : worker.sessions) {
    if (IsOfModel(session, held, model) && IsLoadedOrLoading(held)) {
      experts.insert(held.experts.begin(), held.experts.end());
    }
  }
  return experts;
}

// The lists that follow on those of the workers of these names.
absl::StatusOr<ExpertLists> NextLists(const ServedModel& model,
                                      const ReplicaProblem& problem,
                                      const std::vector<std::string>& names,
                                      ExpertLists lists) {
  if (model.settling) return lists;
  if (std::any_of(lists.begin(), lists.end(),
                  [](const auto& list) { return !list.empty(); })) {
    lists = RepairReplicas(problem, std::move(lists));
    const auto even = static_cast<int32_t>(
        (model.experts * model.replicas + problem.workers.size() - 1) /
        problem.workers.size());
    lists = ImproveReplicas(
        problem, lists,
        {.max_moves = std::max(even, 8),
         .seconds_per_move = static_cast<double>(model.plan.expert_bytes) /
                             kLoadBytesPerSecond});
  } else {
    ASSIGN_OR_RETURN(lists, PlaceReplicas(problem));
  }
  const auto home = model.homes.find(names);
  const auto fits = [&] {
    for (size_t w = 0; w < problem.workers.size(); ++w) {
      if (static_cast<int64_t>(home->second[w].size()) >
          problem.workers[w].max_experts) {
        return false;
      }
    }
    // It says where replicas are, not how many: experts were hot then.
    const std::vector<size_t> counts = CountReplicas(model, lists);
    const std::vector<size_t> then = CountReplicas(model, home->second);
    return std::equal(then.begin(), then.end(), counts.begin(),
                      std::less_equal<>());
  };
  if (home != model.homes.end() && fits() &&
      CountSharing(problem, home->second) <= CountSharing(problem, lists) &&
      PlacementCost(problem, home->second) <=
          kHomeCost * PlacementCost(problem, lists)) {
    lists = home->second;
  }
  return lists;
}

}  // namespace

absl::StatusOr<ExpertAssignment> AssignExperts(const ServedModel& model,
                                               const ObservedMembers& members) {
  ReplicaProblem problem;
  problem.num_experts = model.experts;
  problem.replicas = model.replicas;
  problem.load = model.load;
  std::vector<MemberKey> workers;
  std::vector<std::string> names;
  ExpertLists lists;
  for (const auto& [key, worker] : members) {
    const MemberInfo& info = worker.member.info;
    if (!worker.takes_experts()) continue;
    workers.push_back(key);
    names.push_back(key.name);
    ReplicaProblem::Worker& room = problem.workers.emplace_back();
    room.failure_domain = info.failure_domain;
    const std::set<int32_t> has = ExpertsOn(worker, model);
    bool full = false;  // failed to load a bundle
    int64_t others = worker.promised_bytes;
    for (const auto& [session, held] : worker.sessions) {
      if (IsOfModel(session, held, model)) {
        full = full || held.state == HeldSession::State::kPaused;
      } else if (IsLoadedOrLoading(held)) {
        others += held.bytes;
      }
    }
    std::vector<int32_t>& list = lists.emplace_back(has.begin(), has.end());
    const auto assigned = model.assignment.find(key);
    if (assigned != model.assignment.end()) {
      list = assigned->second;
    }
    if (info.capacity_bytes > 0) {
      room.max_experts = static_cast<int32_t>(
          std::clamp<int64_t>((info.capacity_bytes - others) /
                                  std::max<int64_t>(model.plan.expert_bytes, 1),
                              std::ssize(list), model.experts));
    }
    if (full) {
      std::erase_if(list, [&](int32_t e) { return !has.contains(e); });
      room.max_experts =
          std::min(room.max_experts, static_cast<int32_t>(list.size()));
    }
  }
  if (model.experts == 0) return ExpertAssignment();
  if (workers.empty()) return Remaining(model, members, {});
  ASSIGN_OR_RETURN(lists, NextLists(model, problem, names, std::move(lists)));
  ExpertAssignment assignment = Remaining(model, members, lists);
  for (size_t w = 0; w < workers.size(); ++w) {
    assignment[workers[w]] = std::move(lists[w]);
  }
  return assignment;
}

void PromiseRoom(const ServedModel& model, ObservedMembers* members) {
  for (const auto& [key, list] : model.assignment) {
    const auto worker = members->find(key);
    if (worker == members->end()) continue;
    const std::set<int32_t> has = ExpertsOn(worker->second, model);
    worker->second.promised_bytes +=
        std::count_if(list.begin(), list.end(),
                      [&](int32_t e) { return !has.contains(e); }) *
        model.plan.expert_bytes;
  }
}

int32_t CountSharing(const ServedModel& model, const ObservedMembers& members) {
  ReplicaProblem problem;
  problem.num_experts = model.experts;
  problem.replicas = model.replicas;
  ExpertLists lists;
  for (const auto& [key, worker] : members) {
    std::set<int32_t> has;
    for (const v1::WorkerPlacement& bundle : model.placement.workers()) {
      if (bundle.name() != key.name || bundle.incarnation() != key.incarnation)
        continue;
      has.insert(bundle.experts().begin(), bundle.experts().end());
    }
    lists.emplace_back(has.begin(), has.end());
    problem.workers.emplace_back().failure_domain =
        worker.member.info.failure_domain;
  }
  return CountSharing(problem, lists);
}

void RecordHomes(ServedModel* model) {
  if (model->phase == ServedModel::Phase::kLoading) return;
  std::map<std::pair<std::string, int64_t>, std::set<int32_t>> placed;
  for (const v1::WorkerPlacement& bundle : model->placement.workers()) {
    placed[{bundle.name(), bundle.incarnation()}].insert(
        bundle.experts().begin(), bundle.experts().end());
  }
  std::vector<std::string> names;
  ExpertLists lists;
  for (const auto& [key, list] : model->assignment) {
    const std::set<int32_t>& has = placed[{key.name, key.incarnation}];
    if (!std::equal(list.begin(), list.end(), has.begin(), has.end())) return;
    names.push_back(key.name);
    lists.push_back(list);
  }
  for (const size_t count : CountReplicas(*model, lists)) {
    if (count < std::min<size_t>(model->replicas, names.size())) return;
  }
  if (model->homes.size() >= kMaxHomes) model->homes.clear();
  model->homes[std::move(names)] = std::move(lists);
}

}  // namespace gshard
