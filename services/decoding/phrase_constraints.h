// PhraseConstraints: token phrases that a translation must contain, and a
// hypothesis's progress with them. Pure bookkeeping.
//
// A phrase is met when its tokens occur consecutively; an interrupted phrase
// must be begun again. Phrases do not share tokens, and may come in any order.

#ifndef SERVICES_DECODING_PHRASE_CONSTRAINTS_H_
#define SERVICES_DECODING_PHRASE_CONSTRAINTS_H_

#include <cstdint>
#include <vector>

namespace gshard {

inline constexpr int kMaxPhrases = 32;

class PhraseConstraints {
 public:
  // REQUIRES: at most kMaxPhrases phrases, none empty.
  explicit PhraseConstraints(std::vector<std::vector<int32_t>> phrases);

  // A hypothesis's progress.
  struct State {
    uint32_t met = 0;      // phrase i: bit i
    int8_t phrase = -1;    // the one in progress; -1: none
    int32_t position = 0;  // tokens of it so far
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
  // The first unmet phrase that begins with `token`; -1 if there is none.
  int Beginning(const State& state, int32_t token) const;

  std::vector<std::vector<int32_t>> phrases_;
  int total_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_PHRASE_CONSTRAINTS_H_
