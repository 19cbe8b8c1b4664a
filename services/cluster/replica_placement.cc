#include "services/cluster/replica_placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/cluster/failure_domains.h"
#include "services/cluster/placement_draft.h"

namespace gshard {
namespace {

absl::Status CheckProblem(const ReplicaProblem& problem) {
  const auto bad = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("placement: ", what...));
  };
  if (problem.num_experts < 0 || problem.num_experts > kMaxPlacedExperts) {
    return bad("expected 0 to ", kMaxPlacedExperts, " experts, got ",
               problem.num_experts);
  }
  if (problem.replicas < 1 || problem.replicas > kMaxReplicas) {
    return bad("expected 1 to ", kMaxReplicas, " replicas, got ",
               problem.replicas);
  }
  if (problem.workers.empty() ||
      problem.workers.size() > static_cast<size_t>(kMaxPlacedWorkers)) {
    return bad("expected 1 to ", kMaxPlacedWorkers, " workers, got ",
               problem.workers.size());
  }
  if (!problem.load.empty() &&
      problem.load.size() != static_cast<size_t>(problem.num_experts)) {
    return bad("expected the loads of ", problem.num_experts, " experts, got ",
               problem.load.size());
  }
  for (const double load : problem.load) {
    if (!std::isfinite(load) || load < 0.0) {
      return bad("expected a finite load of at least 0, got ", load);
    }
  }
  for (const ReplicaProblem::Worker& worker : problem.workers) {
    if (!std::isfinite(worker.rows_per_second) ||
        worker.rows_per_second <= 0.0 || worker.max_experts < 0) {
      return bad("expected a worker with a positive speed and room, got ",
                 worker.rows_per_second, " and ", worker.max_experts);
    }
    RETURN_IF_ERROR(
        Annotate(ValidateFailureDomain(worker.failure_domain), "placement"));
  }
  return absl::OkStatus();
}

// Adds replicas until experts have `wanted`, those missing most first, and of
// these the busiest. Returns an expert for which there was no room.
std::optional<int32_t> Fill(const std::vector<int32_t>& wanted,
                            PlacementDraft& draft) {
  std::optional<int32_t> left_out;
  const int32_t most =
      wanted.empty() ? 0 : *std::max_element(wanted.begin(), wanted.end());
  for (int32_t replica = 0; replica < most; ++replica) {
    std::vector<int32_t> order;
    for (size_t e = 0; e < wanted.size(); ++e) {
      const auto expert = static_cast<int32_t>(e);
      if (draft.count(expert) <= replica && wanted[e] > replica) {
        order.push_back(expert);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return draft.load(a) > draft.load(b);
    });
    for (const int32_t expert : order) {
      const std::optional<int32_t> worker = draft.BestFor(expert);
      if (worker.has_value()) {
        draft.Add(*worker, expert);
      } else if (!left_out.has_value()) {
        left_out = expert;
      }
    }
  }
  return left_out;
}

std::vector<int32_t> LeastReplicas(const ReplicaProblem& problem) {
  return std::vector<int32_t>(problem.num_experts,
                              static_cast<int32_t>(std::min<size_t>(
                                  problem.replicas, problem.workers.size())));
}

// Makes one change that makes `draft` smoother; false if there is none. Moves a
// replica from the busiest possible worker, or adds one of an expert below its
// target.
bool Step(const std::vector<int32_t>& wanted, PlacementDraft& draft) {
  std::vector<int32_t> by_busy(draft.lists().size());
  std::iota(by_busy.begin(), by_busy.end(), 0);
  std::stable_sort(by_busy.begin(), by_busy.end(), [&](int32_t a, int32_t b) {
    return draft.Busy(a) > draft.Busy(b);
  });
  for (const int32_t from : by_busy) {
    // The rest are less busy: little to gain.
    if (draft.Busy(from) < draft.Cost() * 0.999) return false;
    double best_gain = 1e-9 * draft.Roughness();
    int32_t best_expert = -1, best_to = -1;
    for (const int32_t expert : draft.lists()[from]) {
      const bool add = draft.count(expert) < wanted[expert];
      const std::optional<int32_t> to = draft.BestFor(expert, add ? -1 : from);
      if (!to.has_value() || (!add && draft.Nearness(*to, expert, from) >
                                          draft.Nearness(from, expert))) {
        continue;
      }
      const double gain = add ? draft.GainOfAdding(*to, expert)
                              : draft.GainOfMoving(from, *to, expert);
      if (gain <= best_gain) continue;
      best_gain = gain;
      best_expert = expert;
      best_to = *to;
    }
    if (best_expert < 0) continue;
    if (draft.count(best_expert) >= wanted[best_expert]) {
      draft.Remove(from, best_expert);
    }
    draft.Add(best_to, best_expert);
    return true;
  }
  return false;
}

// Numbers of replicas so that none has more than `share` of a worker's even
// share, for experts with more than `hot` times the mean load: a few experts on
// many workers are not hot, only few.
std::vector<int32_t> ReplicasByLoad(const ReplicaProblem& problem, double share,
                                    double hot) {
  std::vector<int32_t> wanted = LeastReplicas(problem);
  const std::vector<double> load = LoadOf(problem);
  const double total = std::accumulate(load.begin(), load.end(), 0.0);
  const auto W = static_cast<double>(problem.workers.size());
  for (size_t e = 0; e < wanted.size(); ++e) {
    if (load[e] <= hot * total / static_cast<double>(wanted.size())) continue;
    const double needed = std::ceil(load[e] / (share * total / W) - 1e-9);
    wanted[e] = std::max(
        wanted[e],
        static_cast<int32_t>(std::min({needed, W, double{kMaxReplicas}})));
  }
  return wanted;
}

}  // namespace

double PlacementCost(const ReplicaProblem& problem, const ExpertLists& lists) {
  return PlacementDraft(problem, lists).Cost();
}

std::vector<int32_t> WantedReplicas(const ReplicaProblem& problem) {
  return ReplicasByLoad(problem, /*share=*/0.5, /*hot=*/2.0);
}

absl::StatusOr<ExpertLists> PlaceReplicas(const ReplicaProblem& problem) {
  RETURN_IF_ERROR(CheckProblem(problem));
  const auto W = static_cast<int32_t>(problem.workers.size());
  const auto alike = [&](const ReplicaProblem::Worker& worker) {
    return worker.rows_per_second == problem.workers[0].rows_per_second &&
           worker.max_experts >=
               (problem.num_experts + W - 1) / W * problem.replicas;
  };
  ExpertLists lists(W);
  const std::vector<double> load = LoadOf(problem);
  if (std::all_of(problem.workers.begin(), problem.workers.end(), alike) &&
      std::all_of(load.begin(), load.end(),
                  [&](double l) { return l == load[0]; })) {
    // Rows of adjacent experts are contiguous.
    lists = Place(problem.num_experts, W);
  }
  const ImproveOptions any_gain{.min_gain = 0.0, .seconds_per_move = 0.0};
  PlacementDraft draft(problem, std::move(lists));
  const std::optional<int32_t> left_out = Fill(LeastReplicas(problem), draft);
  if (!left_out.has_value()) {
    (void)Fill(WantedReplicas(problem), draft);
    // Replicas went where there was room, which may be uneven.
    return ImproveReplicas(problem, draft.lists(), any_gain);
  }
  ReplicaProblem anywhere = problem;
  for (auto& worker : anywhere.workers) worker.failure_domain.clear();
  if (anywhere.workers != problem.workers) {
    // Ignoring domains there may be room for more.
    ASSIGN_OR_RETURN(const ExpertLists filled, PlaceReplicas(anywhere));
    return ImproveReplicas(problem, filled, any_gain);
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "placement: the memory of ", W, " workers does not take ",
      LeastReplicas(problem)[0], " replicas of ", problem.num_experts,
      " experts: expert ", *left_out, " is left out"));
}

ExpertLists RepairReplicas(const ReplicaProblem& problem, ExpertLists lists) {
  PlacementDraft draft(problem, std::move(lists));
  (void)Fill(LeastReplicas(problem), draft);
  return draft.lists();
}

ExpertLists ImproveReplicas(const ReplicaProblem& problem,
                            const ExpertLists& lists,
                            const ImproveOptions& options) {
  const std::vector<int32_t> wanted = WantedReplicas(problem);
  const auto may_be = [&](const PlacementDraft& draft) {
    return CountMoves(lists, draft.lists()) <= options.max_moves;
  };
  ExpertLists separated = lists;
  for (PlacementDraft draft(problem, lists);
       Separate(draft) && may_be(draft);) {
    separated = draft.lists();
  }
  PlacementDraft draft(problem, separated);
  const double before = draft.Cost();
  // First drop surplus replicas, from where others are nearest, or from the
  // busiest holder. Adding and dropping have separate limits, so that a load
  // between them changes nothing.
  const std::vector<int32_t> most =
      ReplicasByLoad(problem, /*share=*/0.25, /*hot=*/1.0);
  for (int32_t expert = 0; expert < problem.num_experts; ++expert) {
    while (draft.count(expert) > most[expert]) {
      const auto rank = [&](int32_t w) {
        return std::pair(draft.Nearness(w, expert), draft.Busy(w));
      };
      const std::vector<int32_t>& holders = draft.holders(expert);
      draft.Remove(*std::max_element(
                       holders.begin(), holders.end(),
                       [&](int32_t a, int32_t b) { return rank(a) < rank(b); }),
                   expert);
    }
  }
  ExpertLists improved = draft.lists();
  while ((Separate(draft) || Step(wanted, draft)) && may_be(draft)) {
    improved = draft.lists();
  }
  const int32_t moves = CountMoves(separated, improved);
  if (moves == 0) return improved;
  const double after = PlacementCost(problem, improved);
  const double gain = before <= 0.0 ? 0.0 : (before - after) / before;
  if (gain < options.min_gain ||
      gain * options.horizon_seconds < moves * options.seconds_per_move) {
    return separated;
  }
  return improved;
}

int32_t CountSharing(const ReplicaProblem& problem, const ExpertLists& lists) {
  const FailureDomains domains = DomainsOf(problem);
  int32_t sharing = 0;
  for (const std::vector<int32_t>& holders : HoldersOf(problem, lists)) {
    sharing += domains.CountDistinct(holders) <
               std::min(problem.replicas, static_cast<int32_t>(holders.size()));
  }
  return sharing;
}

int32_t CountMoves(const ExpertLists& from, const ExpertLists& to) {
  int32_t moves = 0;
  for (size_t w = 0; w < to.size(); ++w) {
    for (const int32_t expert : to[w]) {
      moves += w >= from.size() ||
               !std::binary_search(from[w].begin(), from[w].end(), expert);
    }
  }
  return moves;
}

}  // namespace gshard
