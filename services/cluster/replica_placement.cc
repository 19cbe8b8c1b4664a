#include "services/cluster/replica_placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/cluster/placement.h"

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
  }
  return absl::OkStatus();
}

std::vector<double> LoadOf(const ReplicaProblem& problem) {
  for (const double load : problem.load) {
    if (load > 0.0) return problem.load;
  }
  return std::vector<double>(problem.num_experts, 1.0);
}

bool Holds(const std::vector<int32_t>& list, int32_t expert) {
  return std::binary_search(list.begin(), list.end(), expert);
}

// A placement that is being changed, with the load of each worker.
class Draft {
 public:
  Draft(const ReplicaProblem& problem, ExpertLists lists)
      : problem_(problem),
        load_(LoadOf(problem)),
        count_(problem.num_experts),
        lists_(std::move(lists)) {
    for (const std::vector<int32_t>& list : lists_) {
      for (const int32_t expert : list) ++count_[expert];
    }
    busy_.resize(lists_.size());
    for (size_t w = 0; w < lists_.size(); ++w) {
      for (const int32_t expert : lists_[w]) busy_[w] += Share(expert);
    }
  }

  const ExpertLists& lists() const { return lists_; }
  int32_t count(int32_t expert) const { return count_[expert]; }
  double load(int32_t expert) const { return load_[expert]; }
  // Rows of one replica.
  double Share(int32_t expert) const {
    return count_[expert] == 0 ? 0.0 : load_[expert] / count_[expert];
  }
  // Seconds of work of a second.
  double Busy(int32_t w) const {
    return busy_[w] / problem_.workers[w].rows_per_second;
  }
  double Cost() const {
    double cost = 0.0;
    for (size_t w = 0; w < lists_.size(); ++w) cost = std::max(cost, Busy(w));
    return cost;
  }
  // What single changes are judged by: the cost alone does not tell which of
  // several busy workers to relieve first.
  double Roughness() const {
    double sum = 0.0;
    for (size_t w = 0; w < lists_.size(); ++w) sum += busy_[w] * Busy(w);
    return sum;
  }
  bool Fits(int32_t w, int32_t expert) const {
    return static_cast<int64_t>(lists_[w].size()) <
               problem_.workers[w].max_experts &&
           !Holds(lists_[w], expert);
  }

  void Add(int32_t w, int32_t expert) {
    Recount(expert, +1);
    std::vector<int32_t>& list = lists_[w];
    list.insert(std::lower_bound(list.begin(), list.end(), expert), expert);
    busy_[w] += Share(expert);
  }
  void Remove(int32_t w, int32_t expert) {
    std::vector<int32_t>& list = lists_[w];
    list.erase(std::lower_bound(list.begin(), list.end(), expert));
    busy_[w] -= Share(expert);
    Recount(expert, -1);
  }

  // By how much Roughness() falls.
  double GainOfMoving(int32_t from, int32_t to, int32_t expert) const {
    const double share = Share(expert);
    return Fall(from, -share) + Fall(to, share);
  }
  double GainOfAdding(int32_t to, int32_t expert) const {
    const double after = load_[expert] / (count_[expert] + 1);
    double gain = Fall(to, after);
    for (size_t w = 0; w < lists_.size(); ++w) {
      if (!Holds(lists_[w], expert)) continue;
      gain += Fall(static_cast<int32_t>(w), after - Share(expert));
    }
    return gain;
  }

  // The worker that would be least busy with the expert, `extra` or instead of
  // another replica. Which one of several is left to chance, so that not always
  // the same workers share their experts.
  std::optional<int32_t> BestFor(int32_t expert, bool extra) const {
    const double share = load_[expert] / std::max(1, count_[expert] + extra);
    std::optional<int32_t> best;
    double best_busy = 0.0;
    uint64_t best_draw = 0;
    for (size_t w = 0; w < lists_.size(); ++w) {
      if (!Fits(w, expert)) continue;
      const double busy =
          (busy_[w] + share) / problem_.workers[w].rows_per_second;
      const uint64_t draw = RandomBits(expert, w);
      if (!best.has_value() || busy < best_busy ||
          (busy == best_busy && draw < best_draw)) {
        best = static_cast<int32_t>(w);
        best_busy = busy;
        best_draw = draw;
      }
    }
    return best;
  }

 private:
  // Of what worker w adds to Roughness(), if it has `rows` more.
  double Fall(int32_t w, double rows) const {
    const double after = busy_[w] + rows;
    return (busy_[w] * busy_[w] - after * after) /
           problem_.workers[w].rows_per_second;
  }

  // Changes the number of an expert's replicas, and so the shares of all.
  void Recount(int32_t expert, int32_t change) {
    const double before = Share(expert);
    count_[expert] += change;
    const double after = Share(expert);
    for (size_t w = 0; w < lists_.size(); ++w) {
      if (Holds(lists_[w], expert)) busy_[w] += after - before;
    }
  }

  const ReplicaProblem& problem_;
  const std::vector<double> load_;
  std::vector<int32_t> count_;  // [E]
  ExpertLists lists_;
  std::vector<double> busy_;  // [W] rows
};

// Adds replicas until experts have `wanted`, those that lack most first, and
// of these the busiest. Returns the expert for which there was no room.
std::optional<int32_t> Fill(const std::vector<int32_t>& wanted, Draft& draft) {
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
      const std::optional<int32_t> worker =
          draft.BestFor(expert, /*extra=*/true);
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

// One change to `draft` that makes it smoother; false if there is none. Moves a
// replica from the busiest worker that one can be taken from, or adds one of an
// expert that lacks it.
bool Step(const std::vector<int32_t>& wanted, Draft& draft) {
  std::vector<int32_t> by_busy(draft.lists().size());
  std::iota(by_busy.begin(), by_busy.end(), 0);
  std::stable_sort(by_busy.begin(), by_busy.end(), [&](int32_t a, int32_t b) {
    return draft.Busy(a) > draft.Busy(b);
  });
  for (const int32_t from : by_busy) {
    // Others are less busy: there is little to gain from them.
    if (draft.Busy(from) < draft.Cost() * 0.999) return false;
    double best_gain = 1e-9 * draft.Roughness();
    int32_t best_expert = -1, best_to = -1;
    for (const int32_t expert : draft.lists()[from]) {
      const bool add = draft.count(expert) < wanted[expert];
      const std::optional<int32_t> to = draft.BestFor(expert, /*extra=*/add);
      if (!to.has_value()) continue;
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

// Replicas so that none has more than `share` of a worker's even share, for
// experts with more than `hot` times the mean load of one: few experts on many
// workers are not hot, only few.
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
  return Draft(problem, lists).Cost();
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
    // Rows of neighbouring experts travel in one piece.
    ASSIGN_OR_RETURN(Placement placement,
                     Place(problem.num_experts, W, /*version=*/0));
    lists = std::move(placement.experts_of_worker);
  }
  Draft draft(problem, std::move(lists));
  const std::optional<int32_t> left_out = Fill(LeastReplicas(problem), draft);
  if (left_out.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "placement: the memory of ", W, " workers does not take ",
        LeastReplicas(problem)[0], " replicas of ", problem.num_experts,
        " experts: expert ", *left_out, " is left out"));
  }
  (void)Fill(WantedReplicas(problem), draft);
  // Replicas have gone where there was room, which need not be even.
  return ImproveReplicas(problem, draft.lists(),
                         {.min_gain = 0.0, .seconds_per_move = 0.0});
}

ExpertLists RepairReplicas(const ReplicaProblem& problem, ExpertLists lists) {
  Draft draft(problem, std::move(lists));
  (void)Fill(LeastReplicas(problem), draft);
  return draft.lists();
}

ExpertLists ImproveReplicas(const ReplicaProblem& problem,
                            const ExpertLists& lists,
                            const ImproveOptions& options) {
  const std::vector<int32_t> wanted = WantedReplicas(problem);
  Draft draft(problem, lists);
  const double before = draft.Cost();
  // First what is not needed any more, from the busiest holder. Adding and
  // dropping have limits apart, so that a load between them changes nothing.
  const std::vector<int32_t> most =
      ReplicasByLoad(problem, /*share=*/0.25, /*hot=*/1.0);
  for (int32_t expert = 0; expert < problem.num_experts; ++expert) {
    while (draft.count(expert) > most[expert]) {
      int32_t busiest = -1;
      for (size_t w = 0; w < lists.size(); ++w) {
        const auto worker = static_cast<int32_t>(w);
        if (!Holds(draft.lists()[w], expert)) continue;
        if (busiest < 0 || draft.Busy(worker) > draft.Busy(busiest)) {
          busiest = worker;
        }
      }
      draft.Remove(busiest, expert);
    }
  }
  ExpertLists improved = draft.lists();
  while (Step(wanted, draft) &&
         CountMoves(lists, draft.lists()) <= options.max_moves) {
    improved = draft.lists();
  }
  const int32_t moves = CountMoves(lists, improved);
  if (moves == 0) return improved;
  const double after = PlacementCost(problem, improved);
  const double gain = before <= 0.0 ? 0.0 : (before - after) / before;
  if (gain < options.min_gain ||
      gain * options.horizon_seconds < moves * options.seconds_per_move) {
    return lists;
  }
  return improved;
}

int32_t CountMoves(const ExpertLists& from, const ExpertLists& to) {
  int32_t moves = 0;
  for (size_t w = 0; w < to.size(); ++w) {
    for (const int32_t expert : to[w]) {
      if (w >= from.size() || !Holds(from[w], expert)) ++moves;
    }
  }
  return moves;
}

absl::Status CheckReplicas(const ReplicaProblem& problem,
                           const ExpertLists& lists) {
  RETURN_IF_ERROR(CheckProblem(problem));
  if (lists.size() != problem.workers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: expected the experts of ",
                     problem.workers.size(), " workers, got ", lists.size()));
  }
  for (size_t w = 0; w < lists.size(); ++w) {
    int32_t previous = -1;
    for (const int32_t expert : lists[w]) {
      if (expert <= previous || expert >= problem.num_experts) {
        return absl::InvalidArgumentError(absl::StrCat(
            "placement: worker ", w, " expected ascending experts below ",
            problem.num_experts, ", got ", expert, " after ", previous));
      }
      previous = expert;
    }
  }
  return absl::OkStatus();
}

}  // namespace gshard
