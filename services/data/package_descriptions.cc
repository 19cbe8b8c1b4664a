#include "services/data/package_descriptions.h"

#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/base/utf8.h"

namespace gshard {
namespace {

// Lines of a list or ASCII art, which do not form sentences when joined.
bool IsPreformatted(absl::string_view line) {
  return absl::StartsWith(line, "  ") || absl::StartsWith(line, " *") ||
         absl::StartsWith(line, " -");
}

class StanzaReader {
 public:
  explicit StanzaReader(absl::string_view language)
      : title_field_(absl::StrCat("Description-", language, ":")) {}

  void Line(absl::string_view line) {
    if (line.empty()) {
      EndStanza();
    } else if (line[0] == ' ') {
      if (in_description_) Continuation(line);
    } else {
      in_description_ = false;
      absl::string_view value = line;
      if (absl::ConsumePrefix(&value, "Package:")) {
        description_.package = std::string(absl::StripAsciiWhitespace(value));
      } else if (absl::ConsumePrefix(&value, "Description-md5:")) {
        description_.md5 = std::string(absl::StripAsciiWhitespace(value));
      } else if (absl::ConsumePrefix(&value, title_field_)) {
        description_.title = std::string(absl::StripAsciiWhitespace(value));
        in_description_ = true;
      }
    }
  }

  void EndStanza() {
    EndParagraph();
    if (!description_.package.empty() && !description_.md5.empty() &&
        !description_.title.empty() && IsUtf8(description_.title)) {
      descriptions_.push_back(std::move(description_));
    }
    description_ = {};
    in_description_ = false;
  }

  std::vector<Description> Take() { return std::move(descriptions_); }

 private:
  void Continuation(absl::string_view line) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text == ".") return EndParagraph();
    if (IsPreformatted(line)) preformatted_ = true;
    if (!paragraph_.empty()) paragraph_ += ' ';
    absl::StrAppend(&paragraph_, text);
  }

  // A preformatted paragraph is kept as an empty one, so that the counts of two
  // languages still agree.
  void EndParagraph() {
    if (paragraph_.empty()) return;
    if (preformatted_ || !IsUtf8(paragraph_)) paragraph_.clear();
    description_.paragraphs.push_back(std::move(paragraph_));
    paragraph_.clear();
    preformatted_ = false;
  }

  const std::string title_field_;
  std::vector<Description> descriptions_;
  Description description_;
  std::string paragraph_;
  bool in_description_ = false;
  bool preformatted_ = false;
};

}  // namespace

std::vector<Description> ParseTranslations(absl::string_view text,
                                           absl::string_view language) {
  StanzaReader reader(language);
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    reader.Line(absl::StripSuffix(line, "\r"));
  }
  reader.EndStanza();
  return reader.Take();
}

std::vector<SentencePair> MatchDescriptions(
    const std::vector<Description>& english,
    const std::vector<Description>& translated, absl::string_view language,
    bool with_paragraphs) {
  using Key = std::pair<absl::string_view, absl::string_view>;
  std::map<Key, const Description*> by_key;
  for (const Description& d : translated) {
    by_key.emplace(Key(d.package, d.md5), &d);
  }
  std::vector<SentencePair> pairs;
  for (const Description& e : english) {
    const auto found = by_key.find(Key(e.package, e.md5));
    if (found == by_key.end()) continue;
    const Description& t = *found->second;
    pairs.push_back({std::string(language), t.title, e.title});
    if (!with_paragraphs || t.paragraphs.size() != e.paragraphs.size()) {
      continue;
    }
    for (size_t i = 0; i < t.paragraphs.size(); ++i) {
      if (t.paragraphs[i].empty() || e.paragraphs[i].empty()) continue;
      pairs.push_back(
          {std::string(language), t.paragraphs[i], e.paragraphs[i]});
    }
  }
  return pairs;
}

}  // namespace gshard
