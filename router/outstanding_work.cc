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
  if (its > 0) return;
  callers_.erase(caller);
  // What rounding has left of sums does not stay.
  if (callers_.empty()) waiting_work_ = running_work_ = 0;
}

void OutstandingWork::Promise(const WaitingSentence& sentence) {
  Waiting& entry = waiting_[KeyOf(sentence)];
  ++entry.sentences;
  entry.work += sentence.cost.work();
  entry.longest = std::max(entry.longest, sentence.cost.rounds);
  waiting_work_ += sentence.cost.work();
  Add(sentence.caller, sentence.cost.tokens());
}

void OutstandingWork::RemoveWaiting(const WaitingSentence& sentence) {
  const auto found = waiting_.find(KeyOf(sentence));
  CHECK(found != waiting_.end());
  found->second.work -= sentence.cost.work();
  if (--found->second.sentences == 0) waiting_.erase(found);
  waiting_work_ -= sentence.cost.work();
}

void OutstandingWork::Begin(const WaitingSentence& sentence) {
  RemoveWaiting(sentence);
  running_work_ += sentence.cost.work();
}

void OutstandingWork::Finish(const WaitingSentence& sentence) {
  running_work_ -= sentence.cost.work();
  Add(sentence.caller, -sentence.cost.tokens());
}

void OutstandingWork::Drop(const WaitingSentence& sentence) {
  RemoveWaiting(sentence);
  Add(sentence.caller, -sentence.cost.tokens());
}

void OutstandingWork::Progress(const void* batch, double work_left) {
  left_[batch] = work_left;
  if (work_left == 0) left_.erase(batch);
}

double OutstandingWork::RunningWork() const {
  double sum = 0;
  for (const auto& [batch, work] : left_) sum += work;
  return sum;
}

int64_t OutstandingWork::TokensOf(const std::string& caller) const {
  const auto found = callers_.find(caller);
  return found == callers_.end() ? 0 : found->second;
}

Outlook OutstandingWork::Look(const Demand& demand, SteadyTime now,
                              const Pace& pace, double margin) const {
  Outlook outlook;
  double before = RunningWork();
  auto entry = waiting_.begin();
  for (; entry != waiting_.end(); ++entry) {
    const auto& [deadline, caller, flow] = entry->first;
    if (deadline > demand.deadline) break;
    const double work = entry->second.work;
    before += work;
    if (caller != demand.caller) continue;
    outlook.caller_work += work;
    if (flow == demand.flow) outlook.flow_work += work;
  }
  outlook.seconds = pace.Seconds(before + demand.work, demand.longest);
  const double delay = demand.work * pace.work_seconds;
  for (; entry != waiting_.end() && delay > 0; ++entry) {
    before += entry->second.work;
    const double seconds = pace.Seconds(before, entry->second.longest);
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
  Slack slack(margin * pace.work_seconds);
  if (pace.work_seconds == 0) return slack;
  double before = RunningWork();
  for (const auto& [key, entry] : waiting_) {
    before += entry.work;
    const double seconds = pace.Seconds(before, entry.longest);
    const double left = SecondsLeft(std::get<SteadyTime>(key), now);
    // Who is late in any case holds up nobody.
    if (seconds <= left) {
      slack.Add(std::get<SteadyTime>(key), left - margin * seconds);
    }
  }
  return slack;
}

}  // namespace gshard
