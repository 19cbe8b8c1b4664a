#include "services/decoding/phrase_constraints.h"

#include <algorithm>
#include <utility>

#include "services/base/check.h"

namespace gshard {
namespace {

bool BeginsWith(absl::Span<const int32_t> tokens,
                absl::Span<const int32_t> beginning) {
  return tokens.subspan(0, beginning.size()) == beginning;
}

}  // namespace

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

absl::Span<const int32_t> PhraseConstraints::Begun(const State& state) const {
  if (state.phrase < 0) return {};
  return absl::MakeConstSpan(phrases_[state.phrase]).first(state.position);
}

PhraseConstraints::State PhraseConstraints::Next(State state,
                                                 int32_t token) const {
  const absl::Span<const int32_t> begun = Begun(state);
  std::vector<int32_t> tokens(begun.begin(), begun.end());
  tokens.push_back(token);
  state.phrase = -1;
  state.position = 0;
  for (absl::Span<const int32_t> rest = tokens; !rest.empty();) {
    int met = -1;  // the longest with which `rest` begins
    for (size_t i = 0; i < phrases_.size(); ++i) {
      if (state.met >> i & 1) continue;
      const std::vector<int32_t>& phrase = phrases_[i];
      if (phrase.size() > rest.size() && BeginsWith(phrase, rest)) {
        state.phrase = static_cast<int8_t>(i);
        state.position = static_cast<int32_t>(rest.size());
        return state;
      }
      if (BeginsWith(rest, phrase) &&
          (met < 0 || phrase.size() > phrases_[met].size())) {
        met = static_cast<int>(i);
      }
    }
    if (met >= 0) state.met |= uint32_t{1} << met;
    rest.remove_prefix(met >= 0 ? phrases_[met].size() : 1);
  }
  return state;
}

std::vector<int32_t> PhraseConstraints::Wanted(const State& state) const {
  const absl::Span<const int32_t> begun = Begun(state);
  std::vector<int32_t> wanted;
  for (size_t i = 0; i < phrases_.size(); ++i) {
    const std::vector<int32_t>& phrase = phrases_[i];
    if ((state.met >> i & 1) != 0 || phrase.size() <= begun.size() ||
        !BeginsWith(phrase, begun)) {
      continue;
    }
    const int32_t next = phrase[begun.size()];
    if (std::find(wanted.begin(), wanted.end(), next) == wanted.end()) {
      wanted.push_back(next);
    }
  }
  return wanted;
}

}  // namespace gshard
