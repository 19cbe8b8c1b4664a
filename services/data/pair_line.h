// One line of parallel text: language<TAB>source<TAB>target, or, if the
// language is known, source<TAB>target.

#ifndef SERVICES_DATA_PAIR_LINE_H_
#define SERVICES_DATA_PAIR_LINE_H_

#include <cstddef>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "services/data/text_report.h"

namespace gshard {

// Longer lines are bad lines.
inline constexpr size_t kMaxLineBytes = 64 << 10;

// Parts of the parsed line.
struct PairLine {
  absl::string_view language;  // source language
  absl::string_view source;    // trimmed; not empty
  absl::string_view target;
};

struct LineProblem {
  BadLineReason reason;
  std::string message;  // "expected 3 columns, got 1"
};

// std::monostate for a blank line.
using ParsedLine = std::variant<std::monostate, PairLine, LineProblem>;

// `line` comes without its line feed. `default_language` applies to lines with
// two columns; if empty, they are bad lines.
ParsedLine ParsePairLine(absl::string_view line,
                         absl::string_view default_language);

}  // namespace gshard

#endif  // SERVICES_DATA_PAIR_LINE_H_
