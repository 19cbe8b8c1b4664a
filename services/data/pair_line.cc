#include "services/data/pair_line.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/base/utf8.h"
#include "services/config/language_name.h"

namespace gshard {

ParsedLine ParsePairLine(absl::string_view line,
                         absl::string_view default_language) {
  using enum BadLineReason;
  line = absl::StripSuffix(line, "\r");
  if (line.empty()) return std::monostate();
  const size_t malformed = FirstMalformedByte(line);
  if (malformed != line.size()) {
    return LineProblem{kNotUtf8, absl::StrCat("not UTF-8 at byte ", malformed)};
  }
  if (line.find('\0') != absl::string_view::npos) {
    return LineProblem{kZeroByte, "holds a zero byte"};
  }
  const std::vector<absl::string_view> columns = absl::StrSplit(line, '\t');
  absl::string_view language = default_language;
  if (columns.size() == 3) {
    language = columns[0];
  } else if (columns.size() != 2 || language.empty()) {
    return LineProblem{
        kColumns,
        absl::StrCat("expected ", default_language.empty() ? "3" : "2 or 3",
                     " columns, got ", columns.size())};
  }
  if (!IsLanguageName(language)) {
    return LineProblem{kLanguageName, "the first column is no language name"};
  }
  const absl::string_view source =
      absl::StripAsciiWhitespace(columns[columns.size() - 2]);
  const absl::string_view target =
      absl::StripAsciiWhitespace(columns[columns.size() - 1]);
  if (source.empty() || target.empty()) {
    return LineProblem{kEmptySide, source.empty() ? "the source is empty"
                                                  : "the target is empty"};
  }
  return PairLine{language, source, target};
}

}  // namespace gshard
