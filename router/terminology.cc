#include "router/terminology.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/decoding/phrase_constraints.h"

namespace gshard {
namespace {

bool IsLetter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Whether position `at` is between two letters.
bool InWord(absl::string_view text, size_t at) {
  return at > 0 && at < text.size() && IsLetter(text[at - 1]) &&
         IsLetter(text[at]);
}

// Whether position `at` is in the middle of a character.
bool InCharacter(absl::string_view text, size_t at) {
  return at < text.size() && (text[at] & 0xC0) == 0x80;
}

absl::Status CheckText(const std::string& field, const std::string& text) {
  if (text.size() > kMaxTermBytes || absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected 1 to ", kMaxTermBytes,
                     " bytes, not only white space, got ", text.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTerms(const v1::TranslateOptions& options) {
  if (options.terms_size() > kMaxTerms) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.terms: expected at most ", kMaxTerms, ", got ",
                     options.terms_size()));
  }
  for (int i = 0; i < options.terms_size(); ++i) {
    const std::string field = absl::StrCat("options.terms[", i, "]");
    RETURN_IF_ERROR(CheckText(field + ".source", options.terms(i).source()));
    RETURN_IF_ERROR(CheckText(field + ".target", options.terms(i).target()));
  }
  return absl::OkStatus();
}

size_t FindWords(absl::string_view text, absl::string_view phrase) {
  for (size_t at = text.find(phrase); at != absl::string_view::npos;
       at = text.find(phrase, at + 1)) {
    if (!InWord(text, at) && !InWord(text, at + phrase.size())) return at;
  }
  return absl::string_view::npos;
}

absl::StatusOr<std::vector<TargetPhrase>> TargetPhrases(
    const v1::Sentence& sentence, const v1::TranslateOptions& options) {
  std::vector<TargetPhrase> phrases;
  // Never more than can be used, for each is looked for among them.
  const auto add = [&phrases](std::string text, std::string field) {
    if (std::any_of(
            phrases.begin(), phrases.end(),
            [&text](const TargetPhrase& one) { return one.text == text; })) {
      return absl::OkStatus();
    }
    if (phrases.size() == kMaxPhrases) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": expected at most ", kMaxPhrases,
                       " phrases, kept parts and terms that apply together"));
    }
    phrases.push_back({std::move(text), std::move(field)});
    return absl::OkStatus();
  };
  const std::string& text = sentence.text();
  for (int i = 0; i < sentence.keep_size(); ++i) {
    const v1::TextSpan& span = sentence.keep(i);
    const std::string field = absl::StrCat("keep[", i, "]");
    const auto size = static_cast<int64_t>(text.size());
    if (span.begin() < 0 || span.begin() >= span.end() || span.end() > size ||
        InCharacter(text, span.begin()) || InCharacter(text, span.end())) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": expected whole characters of the text's ", size,
          " bytes, got [", span.begin(), ", ", span.end(), ")"));
    }
    std::string kept = text.substr(span.begin(), span.end() - span.begin());
    RETURN_IF_ERROR(CheckText(field, kept));
    RETURN_IF_ERROR(add(std::move(kept), field));
  }
  for (int i = 0; i < options.terms_size(); ++i) {
    const v1::Term& term = options.terms(i);
    if (FindWords(text, term.source()) == std::string::npos) continue;
    RETURN_IF_ERROR(
        add(term.target(), absl::StrCat("options.terms[", i, "].target")));
  }
  return phrases;
}

}  // namespace gshard
