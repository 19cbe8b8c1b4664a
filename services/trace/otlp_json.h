// Spans as a collector takes them: OTLP in JSON,
// https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding. Pure.

#ifndef SERVICES_TRACE_OTLP_JSON_H_
#define SERVICES_TRACE_OTLP_JSON_H_

#include <string>

#include "absl/types/span.h"
#include "services/trace/span.h"

namespace gshard {

// The body of a request to /v1/traces. Text that is not UTF-8 has U+FFFD where
// it is not.
std::string OtlpJson(const SpanResource& resource,
                     absl::Span<const Span> spans);

}  // namespace gshard

#endif  // SERVICES_TRACE_OTLP_JSON_H_
