#include "router/fair_queue.h"

#include <algorithm>
#include <tuple>

#include "services/base/check.h"

namespace gshard {

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

const WaitingSentence* FairQueue::Next() const {
  const WaitingSentence* next = nullptr;
  std::tuple<double, uint64_t> best;
  for (const auto& [name, caller] : callers_) {
    const auto& [ticket, sentence] = NextOf(caller).waiting.front();
    const auto rank = std::make_tuple(caller.clock, ticket);
    if (next == nullptr || rank < best) {
      next = &sentence;
      best = rank;
    }
  }
  return next;
}

WaitingSentence FairQueue::Take() {
  const WaitingSentence* const next = Next();
  CHECK(next != nullptr);
  Caller& caller = callers_[next->caller];
  Flow& flow = caller.flows[next->flow];
  WaitingSentence sentence = std::move(flow.waiting.front().second);
  flow.waiting.pop_front();
  const auto tokens = static_cast<double>(sentence.cost.tokens());
  caller.clock += tokens;
  now_ += tokens / static_cast<double>(callers_.size());
  flow.clock += tokens;
  caller.now += tokens / static_cast<double>(caller.flows.size());
  --sentences_;
  tokens_ -= sentence.cost.tokens();
  Prune(sentence.caller, sentence.flow);
  return sentence;
}

void FairQueue::Remove(const std::string& caller, uint64_t flow,
                       uint64_t request) {
  const auto found = callers_.find(caller);
  if (found == callers_.end()) return;
  const auto its = found->second.flows.find(flow);
  if (its == found->second.flows.end()) return;
  std::erase_if(its->second.waiting, [&](const auto& entry) {
    if (entry.second.request != request) return false;
    --sentences_;
    tokens_ -= entry.second.cost.tokens();
    return true;
  });
  Prune(caller, flow);
}

void FairQueue::Prune(const std::string& caller, uint64_t flow) {
  const auto found = callers_.find(caller);
  const auto its = found->second.flows.find(flow);
  if (its->second.waiting.empty()) found->second.flows.erase(its);
  if (found->second.flows.empty()) callers_.erase(found);
}

}  // namespace gshard
