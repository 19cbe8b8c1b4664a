// Who joins the batch now: a pure function of who waits and what room there is.

#ifndef ROUTER_JOIN_RULE_H_
#define ROUTER_JOIN_RULE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "router/fair_queue.h"
#include "router/slack.h"

namespace gshard {

struct BatchLimits {
  // Hypotheses that are decoded together. One sentence may always run.
  int64_t max_rows = 128;

  // Positions of keys and values, of sources and of hypotheses at their
  // longest. No sentence that needs more can ever join.
  int64_t max_positions = 65536;

  // Source tokens, padding included, that are encoded between two decoding
  // steps: those that run wait for it. One sentence may always join.
  int64_t max_encode_tokens = 512;
};

// How many rows one caller may have, by itself: it leaves room for others, so
// that nobody waits for the end of one of its sentences, which may be long in
// coming. Seven times those that it leaves free, and seven: of many rows seven
// eighths.
int64_t RowsOfOneCaller(const BatchLimits& limits);

// What those in the batch take, at most.
struct BatchLoad {
  int64_t sentences = 0;
  int64_t rows = 0;
  int64_t positions = 0;
  std::map<std::string, int64_t> caller_rows = {};  // of rows; none is 0

  // A sentence comes, or goes.
  void Add(const WaitingSentence& sentence);
  void Remove(const WaitingSentence& sentence);
};

// Takes from `queue` those who join: in its order where `slack` allows that,
// else whose deadline is first. One who does not fit is waited for: nobody
// overtakes, so large sentences get their turn. A caller that has some in the
// batch leaves room for others, as RowsOfOneCaller() says for one, unless it
// would be late by that.
std::vector<WaitingSentence> TakeJoining(FairQueue& queue, BatchLoad load,
                                         const BatchLimits& limits,
                                         Slack slack = {});

}  // namespace gshard

#endif  // ROUTER_JOIN_RULE_H_
