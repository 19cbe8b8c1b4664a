// Headers that a collector wants with each request, such as a key. Pure.

#ifndef SERVICES_TRACE_OTLP_HEADERS_H_
#define SERVICES_TRACE_OTLP_HEADERS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

inline constexpr size_t kMaxOtlpHeaders = 32;
inline constexpr size_t kMaxOtlpHeaderBytes = 8 << 10;  // of all of them

// Parses "name=value" of several headers, with commas or ends of lines between
// them, "%20" and the like in values being the characters: the form of
// OTEL_EXPORTER_OTLP_HEADERS. Returns lines "name: value".
//
// Errors: InvalidArgument, which says which one, and nothing of what it is: it
// may be a secret.
absl::StatusOr<std::vector<std::string>> ParseOtlpHeaders(
    absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_TRACE_OTLP_HEADERS_H_
