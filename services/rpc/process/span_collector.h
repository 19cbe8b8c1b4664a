// SpanCollector: where the spans of a process go, as flags and environment say.

#ifndef SERVICES_RPC_PROCESS_SPAN_COLLECTOR_H_
#define SERVICES_RPC_PROCESS_SPAN_COLLECTOR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/process_options.h"

namespace gshard {

struct SpanCollector {
  std::string endpoint = {};              // empty: nowhere
  std::vector<std::string> headers = {};  // "name: value"; may be secrets
};

// What flags leave out OTEL_EXPORTER_OTLP_ENDPOINT and _HEADERS say. Headers
// are read once, and only where there is an endpoint.
//
// Errors: InvalidArgument for an endpoint that is none, for headers as
// ParseOtlpHeaders() has them, and where others could read them: plain HTTP
// beyond this machine, without --insecure; those of ReadTextFile(). None quotes
// a header.
absl::StatusOr<SpanCollector> SpanCollectorOf(const ProcessOptions& options);

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_SPAN_COLLECTOR_H_
