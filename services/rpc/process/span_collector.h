// SpanCollector: the destination of a process's spans, from its flags and
// environment.

#ifndef SERVICES_RPC_PROCESS_SPAN_COLLECTOR_H_
#define SERVICES_RPC_PROCESS_SPAN_COLLECTOR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/process_options.h"

namespace gshard {

struct SpanCollector {
  std::string endpoint = {};              // empty: spans are not exported
  std::vector<std::string> headers = {};  // "name: value"; may be secrets
};

// Values that flags do not set come from OTEL_EXPORTER_OTLP_ENDPOINT and
// OTEL_EXPORTER_OTLP_HEADERS. Headers are read once, and only with an endpoint.
//
// Errors: InvalidArgument for an invalid endpoint, for headers that
// ParseOtlpHeaders() rejects, and for headers that would travel in plain HTTP
// to another machine without --insecure; those of ReadTextFile(). None quotes a
// header.
absl::StatusOr<SpanCollector> SpanCollectorOf(const ProcessOptions& options);

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_SPAN_COLLECTOR_H_
