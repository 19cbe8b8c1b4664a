// Terminology: which phrases a translation must have, from a glossary and from
// the parts of a text that are kept. Pure.

#ifndef ROUTER_TERMINOLOGY_H_
#define ROUTER_TERMINOLOGY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gshard/v1/translation.pb.h"

namespace gshard {

inline constexpr int kMaxTerms = 64;  // of one request
inline constexpr size_t kMaxTermBytes = 256;

// Errors: InvalidArgument naming the field, "options.terms[3].source: ...".
absl::Status CheckTerms(const v1::TranslateOptions& options);

// Where `text` first has `phrase` as words: where it begins or ends with a letter
// or digit, none stands beside it; npos if nowhere. Bytes of letters outside
// ASCII are letters. REQUIRES: `phrase` is not empty.
size_t FindWords(absl::string_view text, absl::string_view phrase);

// A phrase, and the field that asks for it.
struct TargetPhrase {
  std::string text;
  std::string field;  // "options.terms[3].target", "keep[0]"
};

// What the translation of `sentence` must have, each text once, at most
// kMaxPhrases. Errors: InvalidArgument naming a field that is not valid, or is
// one too many.
absl::StatusOr<std::vector<TargetPhrase>> TargetPhrases(
    const v1::Sentence& sentence, const v1::TranslateOptions& options);

}  // namespace gshard

#endif  // ROUTER_TERMINOLOGY_H_
