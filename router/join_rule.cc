#include "router/join_rule.h"

#include <algorithm>

namespace gshard {

std::vector<WaitingSentence> TakeJoining(FairQueue& queue, BatchLoad load,
                                         const BatchLimits& limits,
                                         Slack slack) {
  std::vector<WaitingSentence> joining;
  int64_t longest = 0;
  while (const WaitingSentence* next = queue.Next()) {
    if (!slack.Allows(next->deadline, next->cost.work())) {
      const WaitingSentence* const urgent = queue.MostUrgent(slack.first());
      if (urgent != nullptr) next = urgent;
    }
    const SentenceCost& cost = next->cost;
    if (load.positions + cost.positions > limits.max_positions) break;
    if (load.sentences > 0 && load.rows + cost.rows > limits.max_rows) break;
    longest = std::max(longest, cost.source_tokens);
    const auto count = static_cast<int64_t>(joining.size()) + 1;
    if (count > 1 && count * longest > limits.max_encode_tokens) break;
    ++load.sentences;
    load.rows += cost.rows;
    load.positions += cost.positions;
    slack.Spend(next->deadline, cost.work());
    joining.push_back(queue.Take(next));
  }
  return joining;
}

}  // namespace gshard
