#include "router/join_rule.h"

#include <algorithm>

namespace gshard {

namespace {

constexpr int64_t kShare = 7;  // in multiples of the rows that are left free

bool LeavesRoom(const WaitingSentence& sentence, const BatchLoad& load,
                const BatchLimits& limits) {
  const auto its = load.caller_rows.find(sentence.caller);
  if (its == load.caller_rows.end()) return true;
  const int64_t free = limits.max_rows - load.rows - sentence.cost.rows;
  return its->second + sentence.cost.rows <= kShare * (free + 1);
}

}  // namespace

int64_t RowsOfOneCaller(const BatchLimits& limits) {
  return std::max<int64_t>(1, kShare * (limits.max_rows + 1) / (kShare + 1));
}

void BatchLoad::Add(const WaitingSentence& sentence) {
  ++sentences;
  rows += sentence.cost.rows;
  positions += sentence.cost.positions;
  caller_rows[sentence.caller] += sentence.cost.rows;
}

void BatchLoad::Remove(const WaitingSentence& sentence) {
  --sentences;
  rows -= sentence.cost.rows;
  positions -= sentence.cost.positions;
  const auto its = caller_rows.find(sentence.caller);
  its->second -= sentence.cost.rows;
  if (its->second == 0) caller_rows.erase(its);
}

std::vector<WaitingSentence> TakeJoining(FairQueue& queue, BatchLoad load,
                                         const BatchLimits& limits,
                                         Slack slack) {
  std::vector<WaitingSentence> joining;
  int64_t longest = 0;
  const auto may = [&](const WaitingSentence& sentence) {
    return LeavesRoom(sentence, load, limits);
  };
  while (const WaitingSentence* next = queue.Next(may)) {
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
    load.Add(*next);
    slack.Spend(next->deadline, cost.work());
    joining.push_back(queue.Take(next));
  }
  return joining;
}

}  // namespace gshard
