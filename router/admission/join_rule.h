// Who joins the batch now: a pure function of who waits and what room there is.

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
  // Hypotheses that are decoded together. One sentence may always run.
  int64_t max_rows = 128;

  // Positions of keys and values, of sources and of hypotheses at their
  // longest. No sentence that needs more can ever join.
  int64_t max_positions = 65536;

  // Source tokens, padding included, that are encoded between two decoding
  // steps: those that run wait for it. One sentence may always join; beside
  // others its caller's next one waits until this is what it took on average.
  int64_t max_encode_tokens = 512;
};

// How many rows one caller may have, by itself: twice those that it leaves free
// for others, and two, so that nobody waits for the end of one of its
// sentences, which may be long in coming.
int64_t RowsOfOneCaller(const BatchLimits& limits);

// SentenceCost::encode_work: a full batch could move on that much in the steps
// that have to be made before the next sentence may be encoded.
double EncodeWork(int64_t source_tokens, const BatchLimits& limits);

// What those in the batch take, at most.
struct BatchLoad {
  int64_t sentences = 0;
  int64_t rows = 0;
  int64_t positions = 0;
  // What a caller has of it; rows count by what they cost.
  struct Share {
    int64_t sentences = 0;
    double rows = 0;
  };
  std::map<std::string, Share> callers = {};  // with sentences
  // Source tokens of callers that steps have not made up for; none is 0.
  std::map<std::string, int64_t> encoded = {};

  // A sentence comes, or goes.
  void Add(const WaitingSentence& sentence);
  void Remove(const WaitingSentence& sentence);
  // One that has come was encoded; a decoding step is made.
  void Encode(const WaitingSentence& sentence);
  void Step(const BatchLimits& limits);
};

// Takes from `queue` those who join: in its order where `slack` allows that,
// else whose deadline is first. One who does not fit is waited for: nobody
// overtakes, so large sentences get their turn. A caller that has some in the
// batch leaves room for others, as RowsOfOneCaller() says for one, unless one
// that was promised an answer in time would be late by that.
std::vector<WaitingSentence> TakeJoining(FairQueue& queue, BatchLoad load,
                                         const BatchLimits& limits,
                                         Slack slack = {});

}  // namespace gshard

#endif  // ROUTER_ADMISSION_JOIN_RULE_H_
