#include "router/outstanding_work.h"

#include <algorithm>

namespace gshard {

void OutstandingWork::Add(const std::string& caller, uint64_t flow,
                          int64_t tokens, double work) {
  Caller& its = callers_[caller];
  Flow& part = its.flows[flow];
  for (Flow* const sum : {static_cast<Flow*>(&its), &part}) {
    sum->tokens += tokens;
    sum->work += work;
  }
  tokens_ += tokens;
  if (part.tokens == 0) its.flows.erase(flow);
  if (its.flows.empty()) callers_.erase(caller);
}

void OutstandingWork::Promise(const std::string& caller, uint64_t flow,
                              int64_t tokens) {
  Add(caller, flow, tokens, static_cast<double>(tokens));
}
void OutstandingWork::Begin(const std::string& caller, uint64_t flow,
                            int64_t tokens) {
  Add(caller, flow, 0, -0.5 * static_cast<double>(tokens));
}
void OutstandingWork::Finish(const std::string& caller, uint64_t flow,
                             int64_t tokens) {
  Add(caller, flow, -tokens, -0.5 * static_cast<double>(tokens));
}
void OutstandingWork::Drop(const std::string& caller, uint64_t flow,
                           int64_t tokens) {
  Add(caller, flow, -tokens, -static_cast<double>(tokens));
}

int64_t OutstandingWork::TokensOf(const std::string& caller) const {
  const auto found = callers_.find(caller);
  return found == callers_.end() ? 0 : found->second.tokens;
}

double OutstandingWork::Until(const std::string& caller, uint64_t flow,
                              int64_t tokens) const {
  double own = static_cast<double>(tokens);
  const auto its = callers_.find(caller);
  if (its != callers_.end()) {
    const auto part = its->second.flows.find(flow);
    if (part != its->second.flows.end()) own += part->second.work;
    const double mine = own;
    for (const auto& [id, other] : its->second.flows) {
      if (id != flow) own += std::min(other.work, mine);
    }
  }
  double until = own;
  for (const auto& [name, other] : callers_) {
    if (name != caller) until += std::min(other.work, own);
  }
  return until;
}

}  // namespace gshard
