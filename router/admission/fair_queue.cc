#include "router/admission/fair_queue.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "services/base/check.h"

namespace gshard {

double SentenceCost::WorkLeft(int64_t rounds_had) const {
  double left = std::abs(rounds - static_cast<double>(rounds_had));
  if (max_rounds > 0) {
    left = std::min(left, static_cast<double>(max_rounds - rounds_had));
  }
  return static_cast<double>(rows) * std::max(left, 1.0) * row_cost;
}

void FairQueue::Add(WaitingSentence sentence) {
  ++sentences_;
  tokens_ += sentence.cost.tokens();
  const auto [caller, new_caller] = callers_.try_emplace(sentence.caller);
  if (new_caller) caller->second.clock = now_;
  const auto [flow, new_flow] = caller->second.flows.try_emplace(sentence.flow);
  if (new_flow) flow->second.clock = caller->second.now;
  flow->second.waiting.emplace_back(++last_ticket_, std::move(sentence));
}

const FairQueue::Flow& FairQueue::NextOf(const Caller& caller) {
  const auto rank = [](const auto& entry) {
    const Flow& flow = entry.second;
    return std::make_tuple(flow.clock, flow.waiting.front().first);
  };
  return std::min_element(
             caller.flows.begin(), caller.flows.end(),
             [&](const auto& a, const auto& b) { return rank(a) < rank(b); })
      ->second;
}

const WaitingSentence* FairQueue::Next(const Filter& may) const {
  const WaitingSentence* next = nullptr;
  std::tuple<double, uint64_t> best;
  for (const auto& [name, caller] : callers_) {
    const auto& [ticket, sentence] = NextOf(caller).waiting.front();
    const auto rank = std::make_tuple(caller.clock, ticket);
    if (may != nullptr && !may(sentence)) continue;
    if (next == nullptr || rank < best) {
      next = &sentence;
      best = rank;
    }
  }
  return next;
}

const WaitingSentence* FairQueue::MostUrgent(
    std::chrono::steady_clock::time_point from, const Filter& may) const {
  const WaitingSentence* urgent = nullptr;
  uint64_t earliest = 0;  // ticket of the earliest
  for (const auto& [name, caller] : callers_) {
    for (const auto& [id, flow] : caller.flows) {
      const auto& [ticket, sentence] = flow.waiting.front();
      if (!sentence.promised || sentence.deadline < from) continue;
      if (may != nullptr && !may(sentence)) continue;
      if (urgent == nullptr || std::tie(sentence.deadline, ticket) <
                                   std::tie(urgent->deadline, earliest)) {
        urgent = &sentence;
        earliest = ticket;
      }
    }
  }
  return urgent;
}

WaitingSentence FairQueue::Take(const WaitingSentence* head) {
  CHECK(head != nullptr);
  Caller& caller = callers_.at(head->caller);
  Flow& flow = caller.flows.at(head->flow);
  CHECK(&flow.waiting.front().second == head);
  WaitingSentence sentence = std::move(flow.waiting.front().second);
  flow.waiting.pop_front();
  const double work = sentence.cost.work();
  caller.clock += work;
  now_ += work / static_cast<double>(callers_.size());
  flow.clock += work;
  caller.now += work / static_cast<double>(caller.flows.size());
  --sentences_;
  tokens_ -= sentence.cost.tokens();
  Prune(sentence.caller, sentence.flow);
  return sentence;
}

std::vector<WaitingSentence> FairQueue::Remove(const std::string& caller,
                                               uint64_t flow,
                                               uint64_t request) {
  std::vector<WaitingSentence> removed;
  const auto found = callers_.find(caller);
  if (found == callers_.end()) return removed;
  const auto its = found->second.flows.find(flow);
  if (its == found->second.flows.end()) return removed;
  std::erase_if(its->second.waiting, [&](auto& entry) {
    if (entry.second.request != request) return false;
    --sentences_;
    tokens_ -= entry.second.cost.tokens();
    removed.push_back(std::move(entry.second));
    return true;
  });
  Prune(caller, flow);
  return removed;
}

void FairQueue::Prune(const std::string& caller, uint64_t flow) {
  const auto found = callers_.find(caller);
  const auto its = found->second.flows.find(flow);
  if (its->second.waiting.empty()) found->second.flows.erase(its);
  if (found->second.flows.empty()) callers_.erase(found);
}

}  // namespace gshard
