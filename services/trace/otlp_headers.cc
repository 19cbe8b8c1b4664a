#include "services/trace/otlp_headers.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gshard {
namespace {

bool IsName(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("!#$&'*+-.^_`|~", c);
  });
}

// Headers that the exporter sets itself.
bool IsOfTheExporter(absl::string_view name) {
  return absl::EqualsIgnoreCase(name, "content-type") ||
         absl::EqualsIgnoreCase(name, "content-length") ||
         absl::EqualsIgnoreCase(name, "transfer-encoding");
}

// Nothing if it is empty, or not a valid header value.
std::optional<std::string> Decode(absl::string_view text) {
  std::string value;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const absl::string_view digits = text.substr(i + 1, 2);
      if (digits.size() != 2 ||
          !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit)) {
        return std::nullopt;
      }
      c = absl::HexStringToBytes(digits)[0];
      i += 2;
    }
    if (!absl::ascii_isprint(c)) return std::nullopt;
    value.push_back(c);
  }
  if (absl::StripAsciiWhitespace(value).empty()) return std::nullopt;
  return value;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseOtlpHeaders(
    absl::string_view text) {
  if (text.size() > kMaxOtlpHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("headers of the collector: expected at most ",
                     kMaxOtlpHeaderBytes, " bytes, got ", text.size()));
  }
  std::vector<std::string> headers;
  for (absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(",\n"))) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) continue;
    const std::string which =
        absl::StrCat("headers of the collector, number ", headers.size() + 1);
    if (headers.size() == kMaxOtlpHeaders) {
      return absl::InvalidArgumentError(
          absl::StrCat(which, ": expected at most ", kMaxOtlpHeaders));
    }
    const size_t equals = std::min(part.find('='), part.size());
    const absl::string_view name =
        absl::StripTrailingAsciiWhitespace(part.substr(0, equals));
    const auto value = Decode(absl::StripLeadingAsciiWhitespace(
        part.substr(std::min(equals + 1, part.size()))));
    if (!IsName(name) || !value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          which,
          ": expected name=value in printable ASCII, the value's commas "
          "and percent signs as %2C and %25"));
    }
    if (IsOfTheExporter(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(which,
                       ": content-type, content-length and "
                       "transfer-encoding are the exporter's"));
    }
    headers.push_back(absl::StrCat(name, ": ", *value));
  }
  return headers;
}

}  // namespace gshard
