// Decides which sentences join the batch: a pure function of the queue and the
// free room.

#ifndef ROUTER_ADMISSION_JOIN_RULE_H_
#define ROUTER_ADMISSION_JOIN_RULE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "router/admission/fair_queue.h"
#include "router/admission/slack.h"

namespace gshard {

struct BatchLimits {
  // Maximum hypotheses decoded together. One sentence may always run.
  int64_t max_rows = 128;

  // Maximum cache positions, of sources and of hypotheses at their longest. A
  // sentence that needs more can never join.
  int64_t max_positions = 65536;

  // Maximum source tokens, padding included, encoded between two decoding
  // steps, while the running sentences wait. One sentence may always join; if
  // there are other callers, its caller's next one waits until its average is
  // within the limit.
  int64_t max_encode_tokens = 512;
};

// Maximum rows of a single caller: twice those that it leaves free, which are
// at least two, so that others need not wait for the end of its possibly long
// sentences.
int64_t RowsOfOneCaller(const BatchLimits& limits);
// Likewise its maximum cache positions.
int64_t PositionsOfOneCaller(const BatchLimits& limits);

// SentenceCost::encode_work: the work of a full batch in the steps that must
// pass before the next sentence may be encoded.
double EncodeWork(int64_t source_tokens, const BatchLimits& limits);

// The maximal resource use of the sentences in the batch.
struct BatchLoad {
  int64_t sentences = 0;
  int64_t rows = 0;
  int64_t positions = 0;
  // A caller's share of it; rows are weighted by cost.
  struct Share {
    int64_t sentences = 0;
    double rows = 0;
    int64_t positions = 0;
  };
  std::map<std::string, Share> callers = {};  // with sentences
  // Encoded source tokens per caller not yet amortized by steps; none is 0.
  std::map<std::string, int64_t> encoded = {};

  // A sentence joins, or leaves.
  void Add(const WaitingSentence& sentence);
  void Remove(const WaitingSentence& sentence);
  // A joined sentence was encoded; a decoding step was made.
  void Encode(const WaitingSentence& sentence);
  void Step(const BatchLimits& limits);
};

// Takes the joining sentences from `queue`: in its order where `slack` allows,
// else earliest deadline first. If the next one does not fit, none overtakes
// it, so large sentences get their turn. A caller with sentences in the batch
// leaves room for others, in rows (RowsOfOneCaller()) and in cache positions
// (PositionsOfOneCaller()), unless that would break a promise.
std::vector<WaitingSentence> TakeJoining(FairQueue& queue, BatchLoad load,
                                         const BatchLimits& limits,
                                         Slack slack = {});

}  // namespace gshard

#endif  // ROUTER_ADMISSION_JOIN_RULE_H_
