// Terminology: the phrases that a translation must contain, from a glossary and
// from the parts of a text to keep. Pure.

#ifndef ROUTER_MODELS_TERMINOLOGY_H_
#define ROUTER_MODELS_TERMINOLOGY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gshard/v1/translation.pb.h"

namespace gshard {

inline constexpr int kMaxTerms = 64;  // per request
inline constexpr size_t kMaxTermBytes = 256;
inline constexpr int kMaxKept =
    16384;  // parts of a sentence, most of them alike

// Errors: InvalidArgument naming the field, "options.terms[3].source: ...".
absl::Status CheckTerms(const v1::TranslateOptions& options);

// First position of `phrase` in `text` as whole words: no letter or digit, as
// IsWordCharacter() tells them, is adjacent to a letter or digit at its ends;
// npos if nowhere. Quadratic in the worst case: not for untrusted input.
// REQUIRES: both are UTF-8, `phrase` is not empty.
size_t FindWords(absl::string_view text, absl::string_view phrase);

// Finds all terms in a text at once, like FindWords(): an Aho-Corasick
// automaton over the terms of a request.
class TermFinder {
 public:
  // Takes time and memory proportional to the terms' bytes. REQUIRES: they are
  // UTF-8 and not empty.
  explicit TermFinder(const v1::TranslateOptions& options);

  // Whether `text` contains each of the terms. Takes time proportional to the
  // bytes of the text and of the terms in any case; adds the number of
  // transitions to `steps`, unless null. Thread-safe. REQUIRES: `text` is
  // UTF-8.
  std::vector<bool> Find(absl::string_view text,
                         int64_t* steps = nullptr) const;

 private:
  // A prefix of a term, by index; 0 is the empty one, and means none for longer
  // prefixes.
  struct Prefix {
    int32_t suffix = 0;     // the longest proper suffix
    int32_t longer = 0;     // for the first byte known to follow it
    char byte = 0;          // that byte
    bool branches = false;  // more follow it: branches_
  };

  // The prefix extended by a byte; 0: none.
  int32_t Longer(int32_t prefix, char byte) const;
  // The longest prefix of a term that is a suffix of `prefix` + `byte`.
  int32_t Follow(int32_t prefix, char byte, int64_t* steps) const;

  std::vector<Prefix> prefixes_;
  absl::flat_hash_map<std::pair<int32_t, char>, int32_t> branches_;
  std::vector<int32_t> by_length_;  // the shortest first
  std::vector<int32_t> terms_;      // as prefixes
};

// A phrase, and the field that requires it.
struct TargetPhrase {
  std::string text;
  std::string field;  // "options.terms[3].target", "keep[0]"
  int term = -1;      // 3, -1
};

// The phrases that the translation of `sentence` must contain, without white
// space around them and without duplicates, at most kMaxPhrases. `finder` is
// that of `options`. Errors: InvalidArgument naming a field that is invalid, or
// one too many.
absl::StatusOr<std::vector<TargetPhrase>> TargetPhrases(
    const v1::Sentence& sentence, const v1::TranslateOptions& options,
    const TermFinder& finder);

}  // namespace gshard

#endif  // ROUTER_MODELS_TERMINOLOGY_H_
