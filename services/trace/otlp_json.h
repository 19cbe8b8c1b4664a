// Spans in the collector's format: OTLP in JSON,
// https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding. Pure.

#ifndef SERVICES_TRACE_OTLP_JSON_H_
#define SERVICES_TRACE_OTLP_JSON_H_

#include <string>

#include "absl/types/span.h"
#include "services/trace/span.h"

namespace gshard {

// The body of a request to /v1/traces. Malformed UTF-8 becomes U+FFFD.
std::string OtlpJson(const SpanResource& resource,
                     absl::Span<const Span> spans);

}  // namespace gshard

#endif  // SERVICES_TRACE_OTLP_JSON_H_
