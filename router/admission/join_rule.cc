#include "router/admission/join_rule.h"

#include <algorithm>

namespace gshard {

namespace {

// Rows or positions of one caller, in multiples of those that are left free.
constexpr int64_t kMostOfFree = 2;

double CostOfRows(const WaitingSentence& sentence) {
  return static_cast<double>(sentence.cost.rows) * sentence.cost.row_cost;
}

bool LeavesRoom(const WaitingSentence& sentence, const BatchLoad& load,
                const BatchLimits& limits) {
  const auto its = load.callers.find(sentence.caller);
  if (its == load.callers.end()) return true;
  const int64_t free = limits.max_rows - load.rows - sentence.cost.rows;
  const int64_t free_positions =
      limits.max_positions - load.positions - sentence.cost.positions;
  return its->second.rows + CostOfRows(sentence) <=
             static_cast<double>(kMostOfFree * (free + 1)) &&
         its->second.positions + sentence.cost.positions <=
             kMostOfFree * free_positions;
}

// Whether its encoding delays no other caller's steps.
bool DelaysNobody(const WaitingSentence& sentence, const BatchLoad& load) {
  return load.callers.size() == load.callers.count(sentence.caller);
}

bool IsMadeUpFor(const WaitingSentence& sentence, const BatchLoad& load) {
  return !load.encoded.contains(sentence.caller);
}

// A caller whose encoded sentences are not amortized yet yields to all others.
const WaitingSentence* NextInTurn(const FairQueue& queue, const BatchLoad& load,
                                  const BatchLimits& limits) {
  const auto next = [&](const auto& may) {
    return queue.Next([&](const WaitingSentence& sentence) {
      return LeavesRoom(sentence, load, limits) && may(sentence, load);
    });
  };
  const WaitingSentence* const first = next(IsMadeUpFor);
  return first != nullptr ? first : next(DelaysNobody);
}

}  // namespace

int64_t RowsOfOneCaller(const BatchLimits& limits) {
  return std::max<int64_t>(
      1, kMostOfFree * (limits.max_rows + 1) / (kMostOfFree + 1));
}

int64_t PositionsOfOneCaller(const BatchLimits& limits) {
  return kMostOfFree * limits.max_positions / (kMostOfFree + 1);
}

double EncodeWork(int64_t source_tokens, const BatchLimits& limits) {
  return static_cast<double>(RowsOfOneCaller(limits)) *
         static_cast<double>(source_tokens) /
         static_cast<double>(limits.max_encode_tokens);
}

void BatchLoad::Add(const WaitingSentence& sentence) {
  ++sentences;
  rows += sentence.cost.rows;
  positions += sentence.cost.positions;
  Share& its = callers[sentence.caller];
  ++its.sentences;
  its.rows += CostOfRows(sentence);
  its.positions += sentence.cost.positions;
}

void BatchLoad::Remove(const WaitingSentence& sentence) {
  --sentences;
  rows -= sentence.cost.rows;
  positions -= sentence.cost.positions;
  const auto its = callers.find(sentence.caller);
  its->second.rows -= CostOfRows(sentence);
  its->second.positions -= sentence.cost.positions;
  if (--its->second.sentences == 0) callers.erase(its);
}

void BatchLoad::Encode(const WaitingSentence& sentence) {
  encoded[sentence.caller] += sentence.cost.source_tokens;
}

void BatchLoad::Step(const BatchLimits& limits) {
  for (auto& [caller, tokens] : encoded) tokens -= limits.max_encode_tokens;
  std::erase_if(encoded, [](const auto& its) { return its.second <= 0; });
}

std::vector<WaitingSentence> TakeJoining(FairQueue& queue, BatchLoad load,
                                         const BatchLimits& limits,
                                         Slack slack) {
  std::vector<WaitingSentence> joining;
  int64_t longest = 0;
  while (const WaitingSentence* next = NextInTurn(queue, load, limits)) {
    if (!slack.Allows(next->deadline, next->cost.work())) {
      const WaitingSentence* const urgent =
          queue.MostUrgent(slack.first(), [&](const WaitingSentence& sentence) {
            return IsMadeUpFor(sentence, load);
          });
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
