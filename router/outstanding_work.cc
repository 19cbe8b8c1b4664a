#include "router/outstanding_work.h"

#include <algorithm>

#include "services/base/check.h"

namespace gshard {
namespace {

double SecondsLeft(SteadyTime deadline, SteadyTime now) {
  return std::chrono::duration<double>(deadline - now).count();
}

}  // namespace

OutstandingWork::Key OutstandingWork::KeyOf(const WaitingSentence& sentence) {
  return {sentence.deadline, sentence.caller, sentence.flow};
}

void OutstandingWork::Add(const std::string& caller, int64_t tokens) {
  int64_t& its = callers_[caller];
  its += tokens;
  if (its == 0) callers_.erase(caller);
}

void OutstandingWork::Promise(const WaitingSentence& sentence) {
  const int64_t tokens = sentence.cost.tokens();
  Waiting& entry = waiting_[KeyOf(sentence)];
  entry.tokens += tokens;
  entry.longest = std::max(entry.longest, sentence.cost.source_tokens);
  waiting_tokens_ += tokens;
  Add(sentence.caller, tokens);
}

void OutstandingWork::RemoveWaiting(const WaitingSentence& sentence) {
  const auto found = waiting_.find(KeyOf(sentence));
  CHECK(found != waiting_.end());
  found->second.tokens -= sentence.cost.tokens();
  if (found->second.tokens == 0) waiting_.erase(found);
  waiting_tokens_ -= sentence.cost.tokens();
}

void OutstandingWork::Begin(const WaitingSentence& sentence) {
  RemoveWaiting(sentence);
  running_tokens_ += sentence.cost.tokens();
}

void OutstandingWork::Finish(const WaitingSentence& sentence) {
  running_tokens_ -= sentence.cost.tokens();
  Add(sentence.caller, -sentence.cost.tokens());
}

void OutstandingWork::Drop(const WaitingSentence& sentence) {
  RemoveWaiting(sentence);
  Add(sentence.caller, -sentence.cost.tokens());
}

void OutstandingWork::Progress(const void* batch, double tokens_left) {
  left_[batch] = tokens_left;
  if (tokens_left == 0) left_.erase(batch);
}

double OutstandingWork::RunningWork() const {
  double sum = 0;
  for (const auto& [batch, tokens] : left_) sum += tokens;
  return sum;
}

int64_t OutstandingWork::TokensOf(const std::string& caller) const {
  const auto found = callers_.find(caller);
  return found == callers_.end() ? 0 : found->second;
}

Outlook OutstandingWork::Look(const Demand& demand, SteadyTime now,
                              const Pace& pace, double margin) const {
  const auto own = static_cast<double>(demand.tokens);
  Outlook outlook;
  double before = RunningWork();
  auto entry = waiting_.begin();
  for (; entry != waiting_.end(); ++entry) {
    const auto& [deadline, caller, flow] = entry->first;
    if (deadline > demand.deadline) break;
    const int64_t tokens = entry->second.tokens;
    before += static_cast<double>(tokens);
    if (caller != demand.caller) continue;
    outlook.caller_tokens += tokens;
    if (flow == demand.flow) outlook.flow_tokens += tokens;
  }
  outlook.seconds =
      pace.Seconds(before + own, static_cast<double>(demand.longest));
  const double delay = own * pace.token_seconds;
  for (; entry != waiting_.end() && delay > 0; ++entry) {
    before += static_cast<double>(entry->second.tokens);
    const double seconds =
        pace.Seconds(before, static_cast<double>(entry->second.longest));
    const double left = SecondsLeft(std::get<SteadyTime>(entry->first), now);
    if (seconds <= left && margin * (seconds + delay) > left) {
      outlook.breaks_promises = true;
      break;
    }
  }
  return outlook;
}

Slack OutstandingWork::SlackAt(SteadyTime now, const Pace& pace,
                               double margin) const {
  Slack slack(margin * pace.token_seconds);
  if (pace.token_seconds == 0) return slack;
  double before = RunningWork();
  for (const auto& [key, entry] : waiting_) {
    before += static_cast<double>(entry.tokens);
    const double seconds =
        pace.Seconds(before, static_cast<double>(entry.longest));
    const double left = SecondsLeft(std::get<SteadyTime>(key), now);
    // Who is late in any case holds up nobody.
    if (seconds <= left) {
      slack.Add(std::get<SteadyTime>(key), left - margin * seconds);
    }
  }
  return slack;
}

}  // namespace gshard
