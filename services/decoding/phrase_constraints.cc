#include "services/decoding/phrase_constraints.h"

#include <algorithm>
#include <utility>

#include "services/base/check.h"

namespace gshard {

PhraseConstraints::PhraseConstraints(std::vector<std::vector<int32_t>> phrases)
    : phrases_(std::move(phrases)) {
  CHECK(phrases_.size() <= kMaxPhrases);
  for (const std::vector<int32_t>& phrase : phrases_) {
    CHECK(!phrase.empty());
    total_ += static_cast<int>(phrase.size());
  }
}

int PhraseConstraints::Progress(const State& state) const {
  int tokens = state.position;
  for (size_t i = 0; i < phrases_.size(); ++i) {
    if (state.met >> i & 1) tokens += static_cast<int>(phrases_[i].size());
  }
  return tokens;
}

int PhraseConstraints::PhrasesMet(const State& state) const {
  return __builtin_popcount(state.met);
}

int PhraseConstraints::Beginning(const State& state, int32_t token) const {
  for (size_t i = 0; i < phrases_.size(); ++i) {
    if ((state.met >> i & 1) == 0 && phrases_[i][0] == token) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

PhraseConstraints::State PhraseConstraints::Next(State state,
                                                 int32_t token) const {
  if (state.phrase >= 0 && phrases_[state.phrase][state.position] == token) {
    ++state.position;
  } else {
    state.phrase = static_cast<int8_t>(Beginning(state, token));
    state.position = state.phrase >= 0 ? 1 : 0;
  }
  if (state.phrase >= 0 &&
      state.position == static_cast<int>(phrases_[state.phrase].size())) {
    state.met |= uint32_t{1} << state.phrase;
    state.phrase = -1;
    state.position = 0;
  }
  return state;
}

std::vector<int32_t> PhraseConstraints::Wanted(const State& state) const {
  if (state.phrase >= 0) return {phrases_[state.phrase][state.position]};
  std::vector<int32_t> wanted;
  for (size_t i = 0; i < phrases_.size(); ++i) {
    const int32_t first = phrases_[i][0];
    if ((state.met >> i & 1) == 0 &&
        std::find(wanted.begin(), wanted.end(), first) == wanted.end()) {
      wanted.push_back(first);
    }
  }
  return wanted;
}

}  // namespace gshard
