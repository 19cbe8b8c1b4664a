// Who joins the batch now: a pure function of who waits and what room there is.

#ifndef ROUTER_JOIN_RULE_H_
#define ROUTER_JOIN_RULE_H_

#include <cstdint>
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

// What those in the batch take, at most.
struct BatchLoad {
  int64_t sentences = 0;
  int64_t rows = 0;
  int64_t positions = 0;
};

// Takes from `queue` those who join: in its order where `slack` allows that,
// else whose deadline is first. One who does not fit is waited for: nobody
// overtakes, so large sentences get their turn.
std::vector<WaitingSentence> TakeJoining(FairQueue& queue, BatchLoad load,
                                         const BatchLimits& limits,
                                         Slack slack = {});

}  // namespace gshard

#endif  // ROUTER_JOIN_RULE_H_
