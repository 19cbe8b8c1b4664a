// CallerCosts: the recently measured cost of each caller's sentences, so that a
// caller is charged for them: one whose translations never end, or whose rows
// all go to the same experts, uses up its own share, and promises to others
// hold. Pure.

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
  // Maximum number of callers; beyond that the least recent one is forgotten.
  static constexpr size_t kMaxCallers = 1024;

  // Records a sentence translated in `rounds` rounds. `row_cost` is the cost of
  // its rows relative to the average in the batch: see
  // FinishedSentence::row_cost. REQUIRES: source_tokens > 0.
  void Observe(const std::string& caller, int64_t source_tokens, int64_t rounds,
               double row_cost);

  // Whether sentences of other callers were observed.
  bool KnowsOthers(const std::string& caller) const {
    return callers_.size() > callers_.count(caller);
  }

  // Estimates a sentence: sets `rounds` and `row_cost` from its other fields.
  // Rows are never estimated cheaper than average.
  void Estimate(const std::string& caller, SentenceCost& cost) const;

  // Rounds per source token for an unknown caller: the median of callers.
  double UsualRounds() const { return usual_rounds_; }

  // The highest of all callers, relative to an unknown caller's.
  double HighestRounds() const { return highest_rounds_ / usual_rounds_; }
  double HighestRowCost() const { return highest_row_cost_; }

 private:
  struct Mean {
    double rounds = 1;  // per source token: a guess until observed
    double row_cost = 1;
    int64_t sentences = 0;  // observed
    int64_t last = 0;       // index of its latest among all
  };

  // The current estimate, which decays with others' sentences, so that no
  // caller is refused forever for past behaviour.
  Mean Now(const Mean& mean) const;
  // Updates the statistics over all callers.
  void Summarize();

  int64_t observed_ = 0;  // sentences
  std::map<std::string, Mean> callers_;
  double usual_rounds_ = Mean().rounds;
  double highest_rounds_ = Mean().rounds;
  double highest_row_cost_ = Mean().row_cost;
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_CALLER_COSTS_H_
