// FairQueue: the queued sentences of one model, and whose turn is next.
//
// Waiting callers share the batch by work: next is the one that has received
// the least work since it began to wait, ties by arrival. The same holds within
// a caller for its flows (a call, or a stream of them): a document yields to a
// sentence, and a caller with a thousand calls gets no more than one with ten.
// Sentences of a flow keep their order. The earliest deadline is also tracked,
// for when fair turns would break a promise. No clock, no threads.

#ifndef ROUTER_ADMISSION_FAIR_QUEUE_H_
#define ROUTER_ADMISSION_FAIR_QUEUE_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gshard {

// The resources that a sentence uses in a batch.
struct SentenceCost {
  int64_t source_tokens = 0;
  int64_t rows = 0;        // hypotheses, at most
  int64_t positions = 0;   // cache positions, at most
  int64_t max_rounds = 0;  // the longest translation; 0: not bounded

  // Estimated by CallerCosts: rounds of a batch, and the cost of a row relative
  // to others'.
  double rounds = 0;
  double row_cost = 1;

  // The work of the steps that amortize its encoding: see EncodeWork().
  double encode_work = 0;

  // The unit of limits.
  int64_t tokens() const { return source_tokens * rows; }

  // The unit of turns, shares and promises: rounds of a row.
  double work() const {
    return std::max(static_cast<double>(rows) * rounds * row_cost, encode_work);
  }
  // The remaining work after `rounds_had` rounds. An overdue sentence is
  // expected to take as much again.
  double WorkLeft(int64_t rounds_had) const;
};

struct WaitingSentence {
  std::string caller;
  uint64_t flow = 0;
  uint64_t request = 0;
  size_t sentence = 0;  // index in the request
  SentenceCost cost;
  std::chrono::steady_clock::time_point arrival;
  // The same, or when it returned to the queue from a batch without room.
  std::chrono::steady_clock::time_point queued_since = {};
  // After this the answer is useless.
  std::chrono::steady_clock::time_point deadline =
      std::chrono::steady_clock::time_point::max();
  bool promised = true;  // whether Admission promised an answer in time
  int64_t rounds = 0;    // batch rounds so far
};

class FairQueue {
 public:
  void Add(WaitingSentence sentence);

  // Which sentences are eligible; callers without one are skipped.
  using Filter = std::function<bool(const WaitingSentence&)>;

  // The next sentence; null if none is eligible. Valid until the next change.
  const WaitingSentence* Next(const Filter& may = nullptr) const;

  // The sentence with the earliest deadline not before `from` among those with
  // a promise, at the head of their flow and eligible; null if there is none.
  // Valid until the next change.
  const WaitingSentence* MostUrgent(std::chrono::steady_clock::time_point from,
                                    const Filter& may = nullptr) const;

  // Removes Next(), or MostUrgent(). REQUIRES: it is one of them.
  WaitingSentence Take() { return Take(Next()); }
  WaitingSentence Take(const WaitingSentence* head);

  // Removes a request's waiting sentences.
  std::vector<WaitingSentence> Remove(const std::string& caller, uint64_t flow,
                                      uint64_t request);

  bool empty() const { return sentences_ == 0; }
  int64_t sentences() const { return sentences_; }
  int64_t tokens() const { return tokens_; }

 private:
  // Start-time fair queueing: each participant has a clock, which its work
  // advances; a newcomer's starts at the mean, `now`.
  struct Share {
    double clock = 0.0;
  };
  struct Flow : Share {
    std::deque<std::pair<uint64_t, WaitingSentence>> waiting;  // by ticket
  };
  struct Caller : Share {
    double now = 0.0;
    std::map<uint64_t, Flow> flows;  // none is empty
  };

  static const Flow& NextOf(const Caller& caller);
  // Deletes a flow, and a caller, without sentences.
  void Prune(const std::string& caller, uint64_t flow);

  double now_ = 0.0;
  uint64_t last_ticket_ = 0;
  int64_t sentences_ = 0;
  int64_t tokens_ = 0;
  std::map<std::string, Caller> callers_;  // none is empty
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_FAIR_QUEUE_H_
