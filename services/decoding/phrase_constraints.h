// PhraseConstraints: token phrases that a translation must contain, and a
// hypothesis's progress with them. Pure bookkeeping.
//
// A phrase is met when its tokens occur consecutively. Phrases do not share
// tokens, and may come in any order. Where several begin, the longest that goes
// on to its end is met; so one that begins another is met only once that other
// one breaks off.

#ifndef SERVICES_DECODING_PHRASE_CONSTRAINTS_H_
#define SERVICES_DECODING_PHRASE_CONSTRAINTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace gshard {

inline constexpr int kMaxPhrases = 32;

class PhraseConstraints {
 public:
  // REQUIRES: at most kMaxPhrases phrases, none empty.
  explicit PhraseConstraints(std::vector<std::vector<int32_t>> phrases);

  // A hypothesis's progress. Its last `position` tokens are in no phrase that
  // was met, and begin an unmet one: as many as possible.
  struct State {
    uint32_t met = 0;      // phrase i: bit i
    int8_t phrase = -1;    // the first that they begin; -1: none
    int32_t position = 0;  // less than the phrase has
    bool operator==(const State&) const = default;
  };

  bool empty() const { return phrases_.empty(); }

  // Number of tokens in all phrases, and in those met and begun.
  int total() const { return total_; }
  int Progress(const State& state) const;
  bool Complete(const State& state) const { return Progress(state) == total_; }
  int PhrasesMet(const State& state) const;

  // The state after another token.
  State Next(State state, int32_t token) const;

  // Tokens that make progress.
  std::vector<int32_t> Wanted(const State& state) const;

 private:
  // The tokens of the phrase in progress.
  absl::Span<const int32_t> Begun(const State& state) const;

  std::vector<std::vector<int32_t>> phrases_;
  int total_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_PHRASE_CONSTRAINTS_H_
