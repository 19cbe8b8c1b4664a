// CallerCosts: what sentences of a caller cost, as it was measured lately, so
// that a caller pays for them itself: one whose translations never end, or
// whose rows all go to the same experts, takes time from its own share, and
// what others were promised stays true. Pure.

#ifndef ROUTER_ADMISSION_CALLER_COSTS_H_
#define ROUTER_ADMISSION_CALLER_COSTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "router/admission/fair_queue.h"

namespace gshard {

class CallerCosts {
 public:
  // Whose are known; beyond that the one who was silent longest is forgotten.
  static constexpr size_t kMaxCallers = 1024;

  // A sentence that was translated in so many rounds. `row_cost` is what its
  // rows cost, in those of all that were beside them: see
  // FinishedSentence::row_cost. REQUIRES: source_tokens > 0.
  void Observe(const std::string& caller, int64_t source_tokens, int64_t rounds,
               double row_cost);

  // Whether sentences of somebody else were observed.
  bool KnowsOthers(const std::string& caller) const {
    return callers_.size() > callers_.count(caller);
  }

  // What is to be expected of a sentence: sets `rounds` and `row_cost` by the
  // rest. Rows are never expected to cost less than others'.
  void Estimate(const std::string& caller, SentenceCost& cost) const;

  // Rounds for each source token of who is not known: the median of callers.
  double UsualRounds() const { return usual_rounds_; }

  // The highest of all callers; rounds in those of who is not known.
  double HighestRounds() const { return highest_rounds_ / usual_rounds_; }
  double HighestRowCost() const { return highest_row_cost_; }

 private:
  struct Mean {
    double rounds = 1;  // for each source token: a guess until there is one
    double row_cost = 1;
    int64_t sentences = 0;  // that were observed
    int64_t last = 0;       // of all sentences, its latest
  };

  // As it is now: others' sentences make it a thing of the past, so that nobody
  // is refused for ever for what it was once.
  Mean Now(const Mean& mean) const;
  // Takes what is of all callers from callers_.
  void Summarize();

  int64_t observed_ = 0;  // sentences
  std::map<std::string, Mean> callers_;
  double usual_rounds_ = Mean().rounds;
  double highest_rounds_ = Mean().rounds;
  double highest_row_cost_ = Mean().row_cost;
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_CALLER_COSTS_H_
