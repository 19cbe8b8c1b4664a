// TextReport: how the lines of a text were used.

#ifndef SERVICES_DATA_TEXT_REPORT_H_
#define SERVICES_DATA_TEXT_REPORT_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gshard {

// Why a line is skipped.
enum class BadLineReason {
  kTooManyBytes,
  kNotUtf8,
  kZeroByte,
  kColumns,          // neither 3 nor, where the language is known, 2
  kLanguageName,     // the first column is not a language name
  kEmptySide,        // the source or the target
  kUnknownLanguage,  // the source vocabulary has no tag for it
  kNoPieces,         // a side has only spaces and the like
};
inline constexpr int kBadLineReasons = 8;

// "not UTF-8".
absl::string_view BadLineReasonName(BadLineReason reason);

struct TextReport {
  int64_t pairs = 0;  // in use
  std::array<int64_t, kBadLineReasons> bad = {};
  int64_t left_out_long = 0;  // valid, but with too many pieces

  int64_t& bad_of(BadLineReason reason) {
    return bad[static_cast<int>(reason)];
  }
  int64_t bad_lines() const;

  // "3 bad lines (2 not UTF-8, 1 of an unknown language); 5 pairs are too
  // long". Empty if none.
  std::string Summary() const;

  bool operator==(const TextReport&) const = default;
};

}  // namespace gshard

#endif  // SERVICES_DATA_TEXT_REPORT_H_
