// Terminology: which phrases a translation must have, from a glossary and from
// the parts of a text that are kept. Pure.

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

inline constexpr int kMaxTerms = 64;  // of one request
inline constexpr size_t kMaxTermBytes = 256;
inline constexpr int kMaxKept =
    16384;  // parts of a sentence, most of them alike

// Errors: InvalidArgument naming the field, "options.terms[3].source: ...".
absl::Status CheckTerms(const v1::TranslateOptions& options);

// Where `text` first has `phrase` as words: where it begins or ends with a
// letter or digit, none stands beside it; npos if nowhere. Bytes of letters
// outside ASCII are letters. Quadratic in the worst case: not for untrusted
// input. REQUIRES: `phrase` is not empty.
size_t FindWords(absl::string_view text, absl::string_view phrase);

// Finds terms in texts as FindWords() does, all at once: Aho and Corasick's
// automaton over the terms of a request.
class TermFinder {
 public:
  // Takes time and memory in proportion to the terms' bytes.
  // REQUIRES: they are UTF-8 and not empty.
  explicit TermFinder(const v1::TranslateOptions& options);

  // Whether `text` has each of the terms. Takes time in proportion to the bytes
  // of the text and of the terms, whatever they are; adds the transitions that
  // it made to `steps`, unless that is null. Thread-safe.
  // REQUIRES: `text` is UTF-8.
  std::vector<bool> Find(absl::string_view text,
                         int64_t* steps = nullptr) const;

 private:
  // A prefix of a term, by number; 0 is the empty one, and none where one would
  // be longer.
  struct Prefix {
    int32_t suffix = 0;     // the longest that it ends with, but itself
    int32_t longer = 0;     // by the first byte that is known to follow it
    char byte = 0;          // this
    bool branches = false;  // others follow it, too: branches_
  };

  // The prefix that is longer by a byte; 0: there is none.
  int32_t Longer(int32_t prefix, char byte) const;
  // The longest prefix of a term that `prefix` with `byte` behind it ends with.
  int32_t Follow(int32_t prefix, char byte, int64_t* steps) const;

  std::vector<Prefix> prefixes_;
  absl::flat_hash_map<std::pair<int32_t, char>, int32_t> branches_;
  std::vector<int32_t> by_length_;  // the shortest first
  std::vector<int32_t> terms_;      // as prefixes
};

// A phrase, and the field that asks for it.
struct TargetPhrase {
  std::string text;
  std::string field;  // "options.terms[3].target", "keep[0]"
};

// What the translation of `sentence` must have, each text once, at most
// kMaxPhrases. `finder` is that of `options`. Errors: InvalidArgument naming a
// field that is not valid, or is one too many.
absl::StatusOr<std::vector<TargetPhrase>> TargetPhrases(
    const v1::Sentence& sentence, const v1::TranslateOptions& options,
    const TermFinder& finder);

}  // namespace gshard

#endif  // ROUTER_MODELS_TERMINOLOGY_H_
