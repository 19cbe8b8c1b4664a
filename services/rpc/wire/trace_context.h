// TraceContext: the W3C trace context of a request, as carried by the metadata
// "traceparent" and "tracestate" of calls and by the fields of our own messages
// (https://www.w3.org/TR/trace-context/).
//
// Each hop continues the trace with a span of its own:
//
//   const TraceContext trace = ContinueTrace(traceparent, tracestate);
//   frame.set_traceparent(trace.Traceparent());

#ifndef SERVICES_RPC_WIRE_TRACE_CONTEXT_H_
#define SERVICES_RPC_WIRE_TRACE_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gshard {

struct TraceContext {
  std::string trace_id;  // 32 lower-case hexadecimal digits; empty: no trace
  std::string span_id;   // 16 digits: the span of this hop
  uint8_t flags = 0;     // 1: sampled
  std::string state;     // tracestate as received; may be empty

  // The traceparent for the next hop, "00-<trace_id>-<span_id>-<flags>"; empty
  // without a trace.
  std::string Traceparent() const;

  // The trace id if the trace is sampled, else empty. Only sampled traces can
  // be looked up, so logs and exemplars should name only these.
  absl::string_view sampled_id() const {
    return (flags & 1) != 0 ? trace_id : absl::string_view();
  }

  bool operator==(const TraceContext&) const = default;
};

// Maximum bytes of a tracestate; a longer one is dropped.
inline constexpr size_t kMaxTracestateBytes = 512;

// Parses a traceparent: version 00 exactly, of later versions the fields of
// version 00. `span_id` of the result is the caller's. Returns a context
// without a trace if `text` is invalid.
TraceContext ParseTraceparent(absl::string_view text);

// Whether `text` is a list of key=value members in the form of the
// specification.
bool IsTracestate(absl::string_view text);

// The caller's trace with a new span for this hop, or a new trace if
// `traceparent` is invalid. Keeps the state only if both arguments are valid.
TraceContext ContinueTrace(absl::string_view traceparent,
                           absl::string_view tracestate);

// The same trace with a new span of this process.
TraceContext NewSpan(TraceContext trace);

// A new trace.
TraceContext NewTrace();

// The trace of `name` in this process: the same trace id for each call, with a
// new span.
TraceContext TraceOf(absl::string_view name);

// 32 hexadecimal digits, unique.
std::string NewRequestId();

// Whether `text`, received from a caller, is safe in logs and metadata: 1 to
// 128 letters, digits, '.', '_', '-', ':' or '/'.
bool IsRequestId(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_TRACE_CONTEXT_H_
