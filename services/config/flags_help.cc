#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/config/flags.h"

namespace gshard {
namespace {

constexpr size_t kHelpColumns = 80;
constexpr size_t kWidestFlagColumn = 30;

// Appends `words` to `text`, from column `at` on, in lines that begin at
// `indent`.
void AppendWrapped(std::string* text, size_t at, size_t indent,
                   absl::string_view words) {
  for (absl::string_view word :
       absl::StrSplit(words, ' ', absl::SkipWhitespace())) {
    if (at > indent && at + 1 + word.size() > kHelpColumns) {
      absl::StrAppend(text, "\n", std::string(indent, ' '));
      at = indent;
    } else if (at > indent) {
      text->push_back(' ');
      ++at;
    }
    absl::StrAppend(text, word);
    at += word.size();
  }
  text->push_back('\n');
}

// One line of a two-column list.
void AppendEntry(std::string* text, size_t column, absl::string_view left,
                 absl::string_view right) {
  absl::StrAppend(text, "  ", left);
  size_t at = 2 + left.size();
  if (at + 2 > column) {
    text->push_back('\n');
    at = 0;
  }
  text->append(column - at, ' ');
  AppendWrapped(text, column, column, right);
}

}  // namespace

std::string Flags::Help() const {
  std::string text;
  AppendWrapped(&text, 0, 0, summary_);
  absl::StrAppend(&text, "\nUsage: ", command_, " [flags]");
  if (!positional_placeholder_.empty()) {
    absl::StrAppend(&text, " ", positional_placeholder_);
  }
  absl::StrAppend(&text, "\n");

  std::vector<std::pair<std::string, std::string>> entries;
  for (const Flag& flag : flags_) {
    std::vector<std::string> notes;
    if (!flag.range.empty()) notes.push_back(flag.range);
    if (flag.required) {
      notes.push_back("required");
    } else if (!flag.default_text.empty()) {
      notes.push_back(absl::StrCat("default ", flag.default_text));
    }
    std::string right = flag.help;
    if (!notes.empty()) {
      absl::StrAppend(&right, " (", absl::StrJoin(notes, "; "), ")");
    }
    entries.emplace_back(
        absl::StrCat("--", flag.name, flag.placeholder.empty() ? "" : "=",
                     flag.placeholder),
        std::move(right));
  }
  if (!version_.empty()) {
    entries.emplace_back("--version", "print the version");
  }
  entries.emplace_back("--help", "print this page");

  size_t column = positional_placeholder_.size();
  for (const auto& [left, right] : entries) {
    if (left.size() <= kWidestFlagColumn) {
      column = std::max(column, left.size());
    }
  }
  column += 4;  // two spaces on either side
  if (!positional_placeholder_.empty()) {
    absl::StrAppend(&text, "\n");
    AppendEntry(&text, column, positional_placeholder_, positional_help_);
  }
  absl::StrAppend(&text, "\nFlags:\n");
  for (const auto& [left, right] : entries) {
    AppendEntry(&text, column, left, right);
  }
  if (!flags_.empty()) {
    absl::StrAppend(&text, "\n");
    AppendWrapped(
        &text, 0, 0,
        absl::StrCat("A flag left out is read from the environment, "
                     "--",
                     flags_[0].name, " from ", EnvironmentName(flags_[0].name),
                     "; else it has its default."));
  }
  if (!examples_.empty()) {
    absl::StrAppend(&text, "\nExample:\n");
    for (const std::string& example : examples_) {
      absl::StrAppend(&text, "  ", example, "\n");
    }
  }
  return text;
}

}  // namespace gshard
