// PhraseConstraints: phrases of tokens that a translation must contain, and how
// far a hypothesis is with them. Pure bookkeeping.
//
// A phrase is met when its tokens have followed each other, once it was begun
// and without a break; one that breaks is to be begun again. Phrases do not
// share tokens, and may come in any order.

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

  // How far a hypothesis is.
  struct State {
    uint32_t met = 0;      // phrase i: bit i
    int8_t phrase = -1;    // that has begun; -1: none
    int32_t position = 0;  // tokens of it
    bool operator==(const State&) const = default;
  };

  bool empty() const { return phrases_.empty(); }

  // Tokens of all phrases, and of those met and begun.
  int total() const { return total_; }
  int Progress(const State& state) const;
  bool Complete(const State& state) const { return Progress(state) == total_; }
  int PhrasesMet(const State& state) const;

  // The state behind a further token.
  State Next(State state, int32_t token) const;

  // Tokens that bring progress.
  std::vector<int32_t> Wanted(const State& state) const;

 private:
  // The first phrase that is not met and begins so; -1 if there is none.
  int Beginning(const State& state, int32_t token) const;

  std::vector<std::vector<int32_t>> phrases_;
  int total_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_PHRASE_CONSTRAINTS_H_
