#include "services/data/text_report.h"

#include <numeric>

#include "absl/strings/str_cat.h"

namespace gshard {

absl::string_view BadLineReasonName(BadLineReason reason) {
  switch (reason) {
    case BadLineReason::kTooManyBytes:
      return "of too many bytes";
    case BadLineReason::kNotUtf8:
      return "not UTF-8";
    case BadLineReason::kZeroByte:
      return "with a zero byte";
    case BadLineReason::kColumns:
      return "with too few or too many columns";
    case BadLineReason::kLanguageName:
      return "without a language name";
    case BadLineReason::kEmptySide:
      return "with an empty side";
    case BadLineReason::kUnknownLanguage:
      return "of an unknown language";
    case BadLineReason::kNoPieces:
      return "with a side of no pieces";
  }
  return "of another kind";
}

int64_t TextReport::bad_lines() const {
  return std::accumulate(bad.begin(), bad.end(), int64_t{0});
}

std::string TextReport::Summary() const {
  std::string summary;
  if (bad_lines() > 0) {
    absl::StrAppend(&summary, bad_lines(),
                    bad_lines() == 1 ? " bad line" : " bad lines");
    const char* separator = " (";
    for (int i = 0; i < kBadLineReasons; ++i) {
      if (bad[i] == 0) continue;
      absl::StrAppend(&summary, separator, bad[i], " ",
                      BadLineReasonName(static_cast<BadLineReason>(i)));
      separator = ", ";
    }
    summary += ")";
  }
  if (left_out_long > 0) {
    absl::StrAppend(&summary, summary.empty() ? "" : "; ", left_out_long,
                    left_out_long == 1 ? " pair is" : " pairs are",
                    " too long");
  }
  return summary;
}

}  // namespace gshard
