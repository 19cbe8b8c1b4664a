#include "router/models/terminology.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"
#include "services/decoding/phrase_constraints.h"

namespace gshard {
namespace {

// Whether position `at` is in the middle of a character.
bool InCharacter(absl::string_view text, size_t at) {
  return at < text.size() && (text[at] & 0xC0) == 0x80;
}

// Whether a word's character begins at `at`.
bool WordBeginsAt(absl::string_view text, size_t at) {
  char32_t c;
  return NextCharacter(text, &at, &c) && IsWordCharacter(c);
}

// Whether position `at` is between two characters of a word, or inside of one.
bool InWord(absl::string_view text, size_t at) {
  if (at == 0 || at >= text.size()) return false;
  if (InCharacter(text, at)) return true;
  size_t before = at - 1;
  while (before > 0 && InCharacter(text, before)) --before;
  return WordBeginsAt(text, before) && WordBeginsAt(text, at);
}

// Marks each position where a term may begin or end. The mark is a byte that
// UTF-8 never contains, so a marked term occurs in a marked text exactly where
// the term occurs in the text as whole words.
std::string MarkBounds(absl::string_view text) {
  constexpr char kMark = '\xFF';
  std::string marked;
  marked.reserve(2 * text.size() + 1);
  for (size_t at = 0; at <= text.size(); ++at) {
    if (!InWord(text, at)) marked += kMark;
    if (at < text.size()) marked += text[at];
  }
  return marked;
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

TermFinder::TermFinder(const v1::TranslateOptions& options) : prefixes_(1) {
  std::vector<std::pair<int32_t, char>> made = {{0, 0}};  // of which, by which
  std::vector<size_t> lengths = {0};
  for (const v1::Term& term : options.terms()) {
    int32_t prefix = 0;
    for (const char byte : MarkBounds(term.source())) {
      int32_t next = Longer(prefix, byte);
      if (next == 0) {
        next = static_cast<int32_t>(prefixes_.size());
        Prefix& shorter = prefixes_[prefix];
        if (shorter.longer == 0) {
          shorter.longer = next;
          shorter.byte = byte;
        } else {
          shorter.branches = true;
          branches_[{prefix, byte}] = next;
        }
        prefixes_.emplace_back();
        made.emplace_back(prefix, byte);
        lengths.push_back(lengths[prefix] + 1);
      }
      prefix = next;
    }
    terms_.push_back(prefix);
  }
  by_length_.resize(made.size());
  std::iota(by_length_.begin(), by_length_.end(), 0);
  std::stable_sort(
      by_length_.begin(), by_length_.end(),
      [&](int32_t a, int32_t b) { return lengths[a] < lengths[b]; });
  int64_t steps = 0;
  for (const int32_t prefix : by_length_) {
    const auto& [shorter, byte] = made[prefix];
    if (shorter == 0) continue;
    prefixes_[prefix].suffix = Follow(prefixes_[shorter].suffix, byte, &steps);
  }
}

int32_t TermFinder::Longer(int32_t prefix, char byte) const {
  const Prefix& shorter = prefixes_[prefix];
  if (shorter.longer != 0 && shorter.byte == byte) return shorter.longer;
  if (!shorter.branches) return 0;
  const auto found = branches_.find({prefix, byte});
  return found == branches_.end() ? 0 : found->second;
}

int32_t TermFinder::Follow(int32_t prefix, char byte, int64_t* steps) const {
  while (true) {
    ++*steps;
    const int32_t longer = Longer(prefix, byte);
    if (longer != 0 || prefix == 0) return longer;
    prefix = prefixes_[prefix].suffix;
  }
}

std::vector<bool> TermFinder::Find(absl::string_view text,
                                   int64_t* steps) const {
  std::vector<bool> found(terms_.size());
  if (found.empty()) return found;
  int64_t made = 0;
  std::vector<bool> seen(prefixes_.size());
  int32_t prefix = 0;
  for (const char byte : MarkBounds(text)) {
    prefix = Follow(prefix, byte, &made);
    seen[prefix] = true;
  }
  // A prefix contains the terms that are its suffixes.
  for (auto longest = by_length_.rbegin(); longest != by_length_.rend();
       ++longest) {
    if (seen[*longest]) seen[prefixes_[*longest].suffix] = true;
  }
  for (size_t i = 0; i < terms_.size(); ++i) found[i] = seen[terms_[i]];
  if (steps != nullptr) *steps += made;
  return found;
}

absl::StatusOr<std::vector<TargetPhrase>> TargetPhrases(
    const v1::Sentence& sentence, const v1::TranslateOptions& options,
    const TermFinder& finder) {
  std::vector<TargetPhrase> phrases;
  // Bounded, since each is compared with all others.
  const auto add = [&phrases](absl::string_view untrimmed, std::string field,
                              int term = -1) {
    std::string text(absl::StripAsciiWhitespace(untrimmed));
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
    phrases.push_back({std::move(text), std::move(field), term});
    return absl::OkStatus();
  };
  const std::string& text = sentence.text();
  if (sentence.keep_size() > kMaxKept) {
    return absl::InvalidArgumentError(absl::StrCat("keep: expected at most ",
                                                   kMaxKept, " parts, got ",
                                                   sentence.keep_size()));
  }
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
    RETURN_IF_ERROR(add(kept, field));
  }
  const std::vector<bool> found = finder.Find(text);
  for (int i = 0; i < options.terms_size(); ++i) {
    if (!found[i]) continue;
    RETURN_IF_ERROR(add(options.terms(i).target(),
                        absl::StrCat("options.terms[", i, "].target"), i));
  }
  return phrases;
}

}  // namespace gshard
