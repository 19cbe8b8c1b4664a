#include "services/rpc/process/span_collector.h"

#include <cstdlib>

#include "absl/strings/strip.h"
#include "services/base/status_macros.h"
#include "services/config/text_proto.h"
#include "services/http/http_client.h"
#include "services/rpc/security/certificate_file.h"
#include "services/trace/otlp_headers.h"

namespace gshard {
namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::StatusOr<SpanCollector> SpanCollectorOf(const ProcessOptions& options) {
  const TraceOptions& trace = options.trace;
  SpanCollector collector;
  collector.endpoint = trace.otlp_endpoint.empty()
                           ? Environment("OTEL_EXPORTER_OTLP_ENDPOINT")
                           : trace.otlp_endpoint;
  collector.endpoint = std::string(absl::StripSuffix(collector.endpoint, "/"));
  if (collector.endpoint.empty()) return collector;
  if (!IsEndpointUrl(collector.endpoint)) {
    return absl::InvalidArgumentError(
        "otlp_endpoint: expected http[s]://host[:port] without user, query and "
        "fragment");
  }
  std::string headers;
  if (trace.otlp_headers_file.empty()) {
    headers = Environment("OTEL_EXPORTER_OTLP_HEADERS");
  } else {
    WarnIfReadableByOthers(trace.otlp_headers_file);
    ASSIGN_OR_RETURN(headers, ReadTextFile(trace.otlp_headers_file));
  }
  ASSIGN_OR_RETURN(collector.headers, ParseOtlpHeaders(headers));
  if (!collector.headers.empty() && !options.security.insecure &&
      !IsConfidentialUrl(collector.endpoint)) {
    return absl::InvalidArgumentError(
        "otlp_endpoint: expected https://... where headers go there, too, or "
        "--insecure where the network is safe");
  }
  return collector;
}

}  // namespace gshard
