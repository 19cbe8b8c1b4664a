#include "services/cluster/placement_draft.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "services/base/random.h"

namespace gshard {
namespace {

void Insert(int32_t value, std::vector<int32_t>& sorted) {
  sorted.insert(std::lower_bound(sorted.begin(), sorted.end(), value), value);
}

void Erase(int32_t value, std::vector<int32_t>& sorted) {
  sorted.erase(std::lower_bound(sorted.begin(), sorted.end(), value));
}

// Moves the expert's replica on `from` to a worker that is further from the
// others; false if none can take it.
bool MoveAway(int32_t from, int32_t expert, PlacementDraft& draft) {
  const auto is_further = [&](int32_t w) {
    return draft.Nearness(w, expert, from) < draft.Nearness(from, expert);
  };
  const std::optional<int32_t> best = draft.BestFor(expert, from);
  if (best.has_value() && is_further(*best)) {
    draft.Move(from, *best, expert);
    return true;
  }
  // Search from the workers with room, as `from` will be, to those that may
  // take it: what each would give away for that, and to whom.
  struct Gift {
    int32_t expert = -1, to = -1;
  };
  const auto W = static_cast<int32_t>(draft.lists().size());
  std::vector<std::optional<Gift>> gifts(W);
  std::vector<int32_t> queue;
  for (int32_t w = 0; w < W; ++w) {
    if (w != from && !draft.HasRoom(w)) continue;
    gifts[w] = Gift();
    queue.push_back(w);
  }
  const auto has_moved = [&](int32_t what, int32_t w) {
    for (; gifts[w]->to >= 0; w = gifts[w]->to) {
      if (gifts[w]->expert == what) return true;
    }
    return false;
  };
  for (size_t next = 0; next < queue.size(); ++next) {
    const int32_t to = queue[next];
    const auto may_take = [&](int32_t what, int32_t w) {
      return what != expert && !draft.Holds(to, what) &&
             draft.Nearness(to, what, w) <= draft.Nearness(w, what) &&
             !has_moved(what, to);
    };
    for (int32_t w = 0; w < W; ++w) {
      if (gifts[w].has_value()) continue;
      const std::vector<int32_t>& list = draft.lists()[w];
      const auto gift = std::find_if(list.begin(), list.end(),
                                     [&](int32_t e) { return may_take(e, w); });
      if (gift == list.end()) continue;
      gifts[w] = Gift{*gift, to};
      queue.push_back(w);
      if (draft.Holds(w, expert) || !is_further(w)) continue;
      draft.Move(from, w, expert);
      for (int32_t x = w; gifts[x]->to >= 0; x = gifts[x]->to) {
        draft.Move(x, gifts[x]->to, gifts[x]->expert);
      }
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<double> LoadOf(const ReplicaProblem& problem) {
  for (const double load : problem.load) {
    if (load > 0.0) return problem.load;
  }
  return std::vector<double>(problem.num_experts, 1.0);
}

FailureDomains DomainsOf(const ReplicaProblem& problem) {
  std::vector<std::string> domains;
  for (const ReplicaProblem::Worker& worker : problem.workers) {
    domains.push_back(worker.failure_domain);
  }
  return FailureDomains(domains);
}

std::vector<std::vector<int32_t>> HoldersOf(const ReplicaProblem& problem,
                                            const ExpertLists& lists) {
  std::vector<std::vector<int32_t>> holders(problem.num_experts);
  for (size_t w = 0; w < lists.size(); ++w) {
    for (const int32_t expert : lists[w]) {
      holders[expert].push_back(static_cast<int32_t>(w));
    }
  }
  return holders;
}

PlacementDraft::PlacementDraft(const ReplicaProblem& problem, ExpertLists lists)
    : problem_(problem),
      domains_(DomainsOf(problem)),
      load_(LoadOf(problem)),
      holders_(HoldersOf(problem, lists)),
      lists_(std::move(lists)),
      busy_(lists_.size()) {
  for (size_t w = 0; w < lists_.size(); ++w) {
    for (const int32_t expert : lists_[w]) busy_[w] += Share(expert);
  }
}

double PlacementDraft::Cost() const {
  double cost = 0.0;
  for (size_t w = 0; w < lists_.size(); ++w) {
    cost = std::max(cost, Busy(static_cast<int32_t>(w)));
  }
  return cost;
}

double PlacementDraft::Roughness() const {
  double sum = 0.0;
  for (size_t w = 0; w < lists_.size(); ++w) {
    sum += busy_[w] * Busy(static_cast<int32_t>(w));
  }
  return sum;
}

bool PlacementDraft::Holds(int32_t w, int32_t expert) const {
  return std::binary_search(lists_[w].begin(), lists_[w].end(), expert);
}

int64_t PlacementDraft::Nearness(int32_t w, int32_t expert,
                                 int32_t without) const {
  int64_t nearness = 0;
  for (const int32_t other : holders_[expert]) {
    if (other == w || other == without) continue;
    nearness += domains_.Nearness(w, other);
  }
  return nearness;
}

void PlacementDraft::Add(int32_t w, int32_t expert) {
  const double before = Share(expert);
  Insert(expert, lists_[w]);
  Insert(w, holders_[expert]);
  busy_[w] += before;
  Reshare(expert, before);
}

void PlacementDraft::Remove(int32_t w, int32_t expert) {
  const double before = Share(expert);
  Erase(expert, lists_[w]);
  Erase(w, holders_[expert]);
  busy_[w] -= before;
  Reshare(expert, before);
}

double PlacementDraft::GainOfMoving(int32_t from, int32_t to,
                                    int32_t expert) const {
  const double share = Share(expert);
  return Fall(from, -share) + Fall(to, share);
}

double PlacementDraft::GainOfAdding(int32_t to, int32_t expert) const {
  const double after = load_[expert] / (count(expert) + 1);
  double gain = Fall(to, after);
  for (const int32_t w : holders_[expert]) {
    gain += Fall(w, after - Share(expert));
  }
  return gain;
}

std::optional<int32_t> PlacementDraft::BestFor(int32_t expert,
                                               int32_t from) const {
  const double share = load_[expert] / std::max(1, count(expert) + (from < 0));
  std::optional<int32_t> best;
  std::tuple<int64_t, double, uint64_t> least;
  for (size_t i = 0; i < lists_.size(); ++i) {
    const auto w = static_cast<int32_t>(i);
    if (!HasRoom(w) || Holds(w, expert)) continue;
    const std::tuple<int64_t, double, uint64_t> rank(
        Nearness(w, expert, from),
        (busy_[w] + share) / problem_.workers[w].rows_per_second,
        RandomBits(expert, w));
    if (best.has_value() && least <= rank) continue;
    best = w;
    least = rank;
  }
  return best;
}

double PlacementDraft::Fall(int32_t w, double rows) const {
  const double after = busy_[w] + rows;
  return (busy_[w] * busy_[w] - after * after) /
         problem_.workers[w].rows_per_second;
}

void PlacementDraft::Reshare(int32_t expert, double before) {
  for (const int32_t w : holders_[expert]) busy_[w] += Share(expert) - before;
}

bool Separate(PlacementDraft& draft) {
  for (int32_t expert = 0; expert < draft.experts(); ++expert) {
    for (const int32_t from : draft.holders(expert)) {
      if (draft.Nearness(from, expert) > 0 && MoveAway(from, expert, draft)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace gshard
