#include "services/data/cleaning.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/base/random.h"
#include "services/base/utf8.h"

namespace gshard {
namespace {

constexpr int64_t kMinWords = 2;
// Of source characters to English ones.
constexpr double kMinRatio = 0.15;
constexpr double kMaxRatio = 3.0;

constexpr uint64_t kSplitKey = 0x7370'6c69'74ull;
constexpr uint64_t kTestPercent = 2;
constexpr uint64_t kDevPercent = 1;

std::vector<absl::string_view> Words(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t\r\n\f\v"),
                        absl::SkipEmpty());
}

std::string LettersOnly(absl::string_view text) {
  std::string letters;
  for (const char c : text) {
    if (absl::ascii_isalpha(c)) letters += absl::ascii_tolower(c);
  }
  return letters;
}

}  // namespace

std::vector<SentencePair> CleanPairs(const std::vector<SentencePair>& pairs,
                                     int64_t max_words) {
  std::vector<SentencePair> kept;
  absl::flat_hash_set<std::string> sources, targets;
  for (const SentencePair& pair : pairs) {
    if (!IsUtf8(pair.source) || !IsUtf8(pair.target)) continue;
    const std::vector<absl::string_view> words = Words(pair.target);
    const auto count = static_cast<int64_t>(words.size());
    if (count < kMinWords || count > max_words) continue;
    SentencePair clean{pair.language, absl::StrJoin(Words(pair.source), " "),
                       absl::StrJoin(words, " ")};
    const std::string letters = LettersOnly(clean.target);
    if (clean.source.empty() || letters.empty()) continue;
    if (Lowercase(clean.source) == Lowercase(clean.target)) continue;
    const double ratio = static_cast<double>(CountCharacters(clean.source)) /
                         static_cast<double>(CountCharacters(clean.target));
    if (ratio < kMinRatio || ratio > kMaxRatio) continue;
    const std::string source =
        absl::StrCat(clean.language, "\t", Lowercase(clean.source));
    const std::string target = absl::StrCat(clean.language, "\t", letters);
    if (sources.contains(source) || targets.contains(target)) continue;
    sources.insert(source);
    targets.insert(target);
    kept.push_back(std::move(clean));
  }
  return kept;
}

Split SplitOf(absl::string_view english) {
  const uint64_t percent = FoldIn(kSplitKey, LettersOnly(english)) % 100;
  if (percent < kTestPercent) return Split::kTest;
  if (percent < kTestPercent + kDevPercent) return Split::kDev;
  return Split::kTrain;
}

}  // namespace gshard
