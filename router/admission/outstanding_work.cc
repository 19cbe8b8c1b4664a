#include "router/admission/outstanding_work.h"

#include <algorithm>
#include <tuple>

#include "services/base/check.h"

namespace gshard {
namespace {

double SecondsLeft(SteadyTime deadline, SteadyTime now) {
  return std::chrono::duration<double>(deadline - now).count();
}

}  // namespace

void Backlog::Add(double work, double seconds_left) {
  busy_ = std::max(busy_, std::min(Seconds(work, 0), seconds_left));
}

OutstandingWork::Key OutstandingWork::KeyOf(const WaitingSentence& sentence) {
  return {sentence.deadline, sentence.caller, sentence.flow, sentence.promised};
}

void OutstandingWork::Add(const std::string& caller, int64_t tokens) {
  int64_t& its = callers_[caller];
  its += tokens;
  if (its > 0) return;
  callers_.erase(caller);
  // Clears rounding errors.
  if (callers_.empty()) waiting_work_ = running_work_ = 0;
}

void OutstandingWork::Take(const WaitingSentence& sentence) {
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

void OutstandingWork::Progress(const void* batch, double work_left,
                               SteadyTime end) {
  left_[batch] = {work_left, end};
  if (work_left == 0) left_.erase(batch);
}

Backlog OutstandingWork::Running(SteadyTime now, const Pace& pace) const {
  Backlog backlog(pace);
  double work = 0;
  SteadyTime end = now;
  for (const auto& [batch, left] : left_) {
    work += left.work;
    end = std::max(end, left.end);
  }
  backlog.Add(work, SecondsLeft(end, now));
  return backlog;
}

int64_t OutstandingWork::TokensOf(const std::string& caller) const {
  const auto found = callers_.find(caller);
  return found == callers_.end() ? 0 : found->second;
}

Waits OutstandingWork::WaitsOf(const Demand& demand) const {
  Waits waits;
  for (const auto& [key, entry] : waiting_) {
    const auto& [deadline, caller, flow, promised] = key;
    if (caller != demand.caller) continue;
    if (promised && deadline > demand.deadline) continue;
    waits.caller += entry.work;
    if (flow == demand.flow) waits.flow += entry.work;
  }
  return waits;
}

SchedulabilityEstimate OutstandingWork::Estimate(const Demand& demand,
                                                 SteadyTime now,
                                                 const Pace& pace,
                                                 double margin) const {
  const Pace slow = pace.Times(margin);
  SchedulabilityEstimate estimate;
  Backlog expected = Running(now, pace), at_worst = Running(now, slow);
  const auto add = [&](const auto& entry) {
    const auto& [deadline, caller, flow, promised] = entry.first;
    if (demand.promised && !promised) return;
    const double left = SecondsLeft(deadline, now);
    expected.Add(entry.second.work, left);
    at_worst.Add(entry.second.work, left);
  };
  auto entry = waiting_.begin();
  for (; entry != waiting_.end(); ++entry) {
    if (std::get<SteadyTime>(entry->first) > demand.deadline) break;
    add(*entry);
  }
  estimate.seconds = at_worst.Seconds(demand.work, demand.longest);
  const double delay = slow.Seconds(demand.work, 0);
  for (; entry != waiting_.end() && delay > 0; ++entry) {
    const auto& [work, longest] =
        std::tie(entry->second.work, entry->second.longest);
    const auto& [deadline, caller, flow, promised] = entry->first;
    const double left = SecondsLeft(deadline, now);
    if ((promised || !demand.promised) &&
        expected.Seconds(work, longest) <= left &&
        at_worst.Seconds(work, longest) + delay > left) {
      estimate.breaks_promises = true;
      break;
    }
    add(*entry);
  }
  return estimate;
}

Slack OutstandingWork::SlackAt(SteadyTime now, const Pace& pace,
                               double margin) const {
  const Pace slow = pace.Times(margin);
  Slack slack(slow.work_seconds);
  if (slow.work_seconds == 0) return slack;
  Backlog expected = Running(now, pace), at_worst = Running(now, slow);
  for (const auto& [key, entry] : waiting_) {
    const auto& [deadline, caller, flow, promised] = key;
    if (!promised) continue;
    const double left = SecondsLeft(deadline, now);
    // A request that is late in any case delays nobody.
    if (expected.Seconds(entry.work, entry.longest) <= left) {
      slack.Add(deadline, left - at_worst.Seconds(entry.work, entry.longest));
    }
    expected.Add(entry.work, left);
    at_worst.Add(entry.work, left);
  }
  return slack;
}

}  // namespace gshard
