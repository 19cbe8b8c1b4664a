// Headers for each request to a collector, such as an API key. Pure functions.

#ifndef SERVICES_TRACE_OTLP_HEADERS_H_
#define SERVICES_TRACE_OTLP_HEADERS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

inline constexpr size_t kMaxOtlpHeaders = 32;
inline constexpr size_t kMaxOtlpHeaderBytes = 8 << 10;  // total size

// Parses several headers "name=value", separated by commas or newlines, with
// percent-encoded values: the form of OTEL_EXPORTER_OTLP_HEADERS. Returns lines
// "name: value".
//
// Errors: InvalidArgument with the header's position, but not its content,
// which may be secret.
absl::StatusOr<std::vector<std::string>> ParseOtlpHeaders(
    absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_TRACE_OTLP_HEADERS_H_
