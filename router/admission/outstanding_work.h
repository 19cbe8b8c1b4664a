// OutstandingWork: what was taken of callers and is not done, by the time at
// which it is due, as SentenceCost::work() and in tokens. Most of it they were
// promised in time; the rest is done as turns come, and no promise waits for
// it.
//
// A promise is kept if what waits is done in the order of deadlines, whatever
// comes later; so whoever asks is told when its work would be done in that
// order, and whether somebody who was promised earlier would be late by it.
// What is not done at its deadline is given up, and holds up nobody from then
// on: so one who asks for more than can be done until then costs others who
// have more time that much, and no more.

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

// What a request would find.
struct SchedulabilityEstimate {
  double seconds = 0;            // until it is done, with the margin
  bool breaks_promises = false;  // somebody who is in time would not be
};

// What waits of a caller, and of its flow, and is due no later or may be late.
struct Waits {
  double caller = 0;
  double flow = 0;
};

// What has to be done first, in the order of deadlines.
class Backlog {
 public:
  explicit Backlog(const Pace& pace) : pace_(pace) {}

  // Behind what is there: work that is given up in so many seconds.
  void Add(double work, double seconds_left);

  // Until all is done, and behind it more work of so many rounds.
  double Seconds(double work, double rounds) const {
    return busy_ + pace_.Seconds(work, rounds);
  }

 private:
  Pace pace_;
  double busy_ = 0;  // seconds
};

// Work that is asked for.
struct Demand {
  std::string caller;
  uint64_t flow = 0;
  SteadyTime deadline;
  double work = 0;
  double longest = 0;    // rounds of a sentence
  bool promised = true;  // or it waits for what is not, too
};

class OutstandingWork {
 public:
  // A sentence is taken; begun; done.
  void Take(const WaitingSentence& sentence);
  void Begin(const WaitingSentence& sentence);
  void Finish(const WaitingSentence& sentence);
  // Taken, and never begun.
  void Drop(const WaitingSentence& sentence);
  // What is left to do of the sentences in a batch, which are given up at
  // `end` at the latest.
  void Progress(const void* batch, double work_left, SteadyTime end);

  // What was taken of the caller and is not done, in tokens.
  int64_t TokensOf(const std::string& caller) const;
  // Of all, those that run as if they had just begun.
  double work() const { return waiting_work_ + running_work_; }
  bool empty() const { return callers_.empty(); }

  Waits WaitsOf(const Demand& demand) const;

  // At this pace. Who would be in time by it may not be late if all takes
  // `margin` times as long.
  SchedulabilityEstimate Estimate(const Demand& demand, SteadyTime now,
                                  const Pace& pace, double margin) const;

  // How long those that wait with a promise can be held up by others that are
  // due later.
  Slack SlackAt(SteadyTime now, const Pace& pace, double margin) const;

 private:
  struct Waiting {
    int64_t sentences = 0;
    double work = 0;
    double longest = 0;  // rounds, of those that ever waited together
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
  // Those that run.
  Backlog Running(SteadyTime now, const Pace& pace) const;

  double waiting_work_ = 0;
  double running_work_ = 0;
  std::map<const void*, Left> left_;        // of batches; no work is 0
  std::map<Key, Waiting> waiting_;          // none is empty
  std::map<std::string, int64_t> callers_;  // tokens; none is 0
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_OUTSTANDING_WORK_H_
