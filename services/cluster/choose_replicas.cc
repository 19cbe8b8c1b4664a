#include "services/cluster/choose_replicas.h"

#include <algorithm>

namespace gshard {

std::vector<int32_t> ChooseReplicas(absl::Span<const int32_t> rows_of_expert,
                                    absl::Span<const ReplicaHolder> holders) {
  const size_t E = rows_of_expert.size();
  std::vector<std::vector<int32_t>> holders_of(E);
  for (size_t h = 0; h < holders.size(); ++h) {
    const WorkerHealth::State state = holders[h].state;
    if (state == WorkerHealth::State::kFailed) continue;
    for (const int32_t expert : holders[h].experts) {
      if (rows_of_expert[expert] <= 0) continue;
      std::vector<int32_t>& best = holders_of[expert];
      if (!best.empty() && state > holders[best[0]].state) continue;
      if (!best.empty() && state < holders[best[0]].state) best.clear();
      best.push_back(static_cast<int32_t>(h));
    }
  }
  std::vector<int32_t> order;
  for (size_t e = 0; e < E; ++e) {
    if (!holders_of[e].empty()) order.push_back(static_cast<int32_t>(e));
  }
  // Experts without a choice go first: the others can adapt.
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const bool only_a = holders_of[a].size() == 1;
    const bool only_b = holders_of[b].size() == 1;
    if (only_a != only_b) return only_a;
    return rows_of_expert[a] > rows_of_expert[b];
  });
  std::vector<int64_t> rows(holders.size());
  std::vector<bool> called(holders.size(), false);
  for (size_t h = 0; h < holders.size(); ++h) {
    rows[h] = holders[h].outstanding_rows;
  }
  std::vector<int32_t> chosen(E, -1);
  for (const int32_t expert : order) {
    int64_t least = 0;
    for (const int32_t h : holders_of[expert]) {
      const int64_t cost = rows[h] + (called[h] ? 0 : kRowsPerCall);
      if (chosen[expert] >= 0 && cost >= least) continue;
      chosen[expert] = h;
      least = cost;
    }
    const int32_t h = chosen[expert];
    rows[h] += rows_of_expert[expert];
    called[h] = true;
  }
  return chosen;
}

}  // namespace gshard
