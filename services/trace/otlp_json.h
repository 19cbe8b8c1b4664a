// Spans in the collector's format: OTLP in JSON,
// https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding. Pure.

#ifndef SERVICES_TRACE_OTLP_JSON_H_
#define SERVICES_TRACE_OTLP_JSON_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/trace/span.h"

namespace gshard {

// The body of a request to /v1/traces. Malformed UTF-8 becomes U+FFFD.
std::string OtlpJson(const SpanResource& resource,
                     absl::Span<const Span> spans);

// The spans of a batch that a collector refuses although it takes the others.
struct OtlpRefusal {
  int64_t spans = 0;
  std::string why;
};

// What the body of a successful answer says of that: nothing if it is empty,
// damaged, or in another encoding.
OtlpRefusal ParseOtlpAnswer(absl::string_view body);

}  // namespace gshard

#endif  // SERVICES_TRACE_OTLP_JSON_H_
