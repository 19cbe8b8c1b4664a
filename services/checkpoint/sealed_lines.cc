#include "services/checkpoint/sealed_lines.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/checkpoint/sha256.h"

namespace gshard {
namespace {

constexpr absl::string_view kLinesStart = "\"lines\":[";
constexpr absl::string_view kDigestStart = "\"sha256\":\"";
constexpr absl::string_view kDigestEnd = "\"\n}\n";
constexpr size_t kDigestDigits = 64;
constexpr size_t kLineDigits = 8;
constexpr size_t kTailBytes =
    kDigestStart.size() + kDigestDigits + kDigestEnd.size();

std::string ShortDigest(absl::string_view line) {
  return Sha256(line).substr(0, kLineDigits);
}

// The line of digests, without its line feed.
std::string LinesMember(const std::vector<std::string>& digests) {
  return absl::StrCat(kLinesStart, "\"", absl::StrJoin(digests, "\",\""),
                      "\"],");
}

absl::Status Damage(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(what, " is not as it was written: its checksum differs"));
}

// The start of the line of digests, found even if that is damaged: the third
// line from the end.
size_t FindDigests(absl::string_view text) {
  size_t at = text.rfind(kLinesStart);
  if (at != absl::string_view::npos) return at;
  at = text.size();
  for (int i = 0; i < 4 && at != absl::string_view::npos && at > 0; ++i) {
    at = text.rfind('\n', at - 1);
  }
  return at == absl::string_view::npos ? 0 : std::min(at + 1, text.size());
}

// Locates the damage in a text whose seal does not match.
absl::Status Locate(absl::string_view text, const DescribeLine& describe) {
  const size_t start = FindDigests(text);
  std::vector<absl::string_view> lines =
      absl::StrSplit(text.substr(0, start), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const absl::string_view found =
      text.substr(start, text.find('\n', start) - start);
  std::vector<std::string> digests;
  for (const absl::string_view line : lines) {
    digests.push_back(ShortDigest(line));
  }
  // The lines are intact if their actual digests complete a valid seal.
  if (text.size() > kTailBytes) {
    const std::string sound = LinesMember(digests);
    const std::string digest =
        Sha256(absl::StrCat(absl::StrJoin(lines, "\n"), "\n", sound, "\n"));
    if (found == sound) return Damage("the field 'sha256'");
    if (absl::StrContains(text.substr(text.size() - kTailBytes), digest)) {
      return Damage("the field 'lines'");
    }
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t at = kLinesStart.size() + 1 + i * (kLineDigits + 3);
    if (found.size() > at && found.substr(at, kLineDigits) != digests[i]) {
      return Damage(describe(i, lines[i]));
    }
  }
  return absl::DataLossError(
      "it does not end with its checksum: cut short, or no sealed text");
}

}  // namespace

std::string SealLines(const std::vector<std::string>& lines) {
  std::vector<std::string> digests;
  for (const std::string& line : lines) digests.push_back(ShortDigest(line));
  std::string text = absl::StrJoin(lines, "\n");
  absl::StrAppend(&text, "\n", LinesMember(digests), "\n");
  const std::string digest = Sha256(text);
  absl::StrAppend(&text, kDigestStart, digest, kDigestEnd);
  return text;
}

absl::Status CheckSeal(absl::string_view text, const DescribeLine& describe) {
  if (text.size() > kTailBytes) {
    const absl::string_view sealed = text.substr(0, text.size() - kTailBytes);
    if (text.substr(sealed.size()) ==
        absl::StrCat(kDigestStart, Sha256(sealed), kDigestEnd)) {
      return absl::OkStatus();
    }
  }
  return Locate(text, describe);
}

}  // namespace gshard
