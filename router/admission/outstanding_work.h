// OutstandingWork: accepted, unfinished work by deadline, in
// SentenceCost::work() and in tokens. Most of it is promised in time; the rest
// is done as its turns come, and no promise waits for it.
//
// Promises are kept if queued work is done earliest deadline first, whatever
// arrives later; so the estimate for a request says when its work would be done
// in that order, and whether it would make an earlier promise late. Work that
// misses its deadline is given up and delays nobody from then on: an oversized
// request delays others with later deadlines until its own, and no longer.

#ifndef ROUTER_ADMISSION_OUTSTANDING_WORK_H_
#define ROUTER_ADMISSION_OUTSTANDING_WORK_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "router/admission/fair_queue.h"
#include "router/admission/service_times.h"
#include "router/admission/slack.h"

namespace gshard {

// What a new request can expect.
struct SchedulabilityEstimate {
  double seconds = 0;            // until done, including the margin
  bool breaks_promises = false;  // an earlier promise would be broken
};

// Queued work of a caller, and of its flow, due no later or without a promise.
struct Waits {
  double caller = 0;
  double flow = 0;
};

// Work to be done first, in the order of deadlines.
class Backlog {
 public:
  explicit Backlog(const Pace& pace) : pace_(pace) {}

  // Appends work that will be given up in `seconds_left`.
  void Add(double work, double seconds_left);

  // Seconds until all of it and then `work` of `rounds` rounds is done.
  double Seconds(double work, double rounds) const {
    return busy_ + pace_.Seconds(work, rounds);
  }

 private:
  Pace pace_;
  double busy_ = 0;  // seconds
};

// Requested work.
struct Demand {
  std::string caller;
  uint64_t flow = 0;
  SteadyTime deadline;
  double work = 0;
  double longest = 0;    // rounds of a sentence
  bool promised = true;  // if not, it also waits for unpromised work
};

class OutstandingWork {
 public:
  // A sentence is accepted; started; done.
  void Take(const WaitingSentence& sentence);
  void Begin(const WaitingSentence& sentence);
  void Finish(const WaitingSentence& sentence);
  // Accepted, and never started.
  void Drop(const WaitingSentence& sentence);
  // The remaining work of the sentences in a batch, which are given up at `end`
  // at the latest.
  void Progress(const void* batch, double work_left, SteadyTime end);

  // The caller's accepted and unfinished work, in tokens.
  int64_t TokensOf(const std::string& caller) const;
  // Work of all callers; running sentences count in full.
  double work() const { return waiting_work_ + running_work_; }
  bool empty() const { return callers_.empty(); }

  Waits WaitsOf(const Demand& demand) const;

  // The estimate at this pace. A promise that holds at this pace must also hold
  // if everything takes `margin` times as long.
  SchedulabilityEstimate Estimate(const Demand& demand, SteadyTime now,
                                  const Pace& pace, double margin) const;

  // How long queued promises can be delayed by work with later deadlines.
  Slack SlackAt(SteadyTime now, const Pace& pace, double margin) const;

 private:
  struct Waiting {
    int64_t sentences = 0;
    double work = 0;
    double longest = 0;  // maximum rounds since it was last empty
  };
  struct Left {
    double work = 0;
    SteadyTime end;
  };
  // By deadline, caller, flow, and whether it is promised.
  using Key = std::tuple<SteadyTime, std::string, uint64_t, bool>;

  static Key KeyOf(const WaitingSentence& sentence);
  void RemoveWaiting(const WaitingSentence& sentence);
  void Add(const std::string& caller, int64_t tokens);
  // The running work.
  Backlog Running(SteadyTime now, const Pace& pace) const;

  double waiting_work_ = 0;
  double running_work_ = 0;
  std::map<const void*, Left> left_;        // work left per batch; none is 0
  std::map<Key, Waiting> waiting_;          // none is empty
  std::map<std::string, int64_t> callers_;  // tokens; none is 0
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_OUTSTANDING_WORK_H_
