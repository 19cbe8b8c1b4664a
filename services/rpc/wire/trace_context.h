// TraceContext: the W3C trace context of a request, as it travels in the
// metadata "traceparent" and "tracestate" of calls and in our own messages
// (https://www.w3.org/TR/trace-context/).
//
// Each hop takes over the trace and makes a span of its own:
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
  std::string span_id;   // 16, this hop's
  uint8_t flags = 0;     // 1: sampled
  std::string state;     // tracestate as it came; may be empty

  // What the next hop gets, "00-<trace_id>-<span_id>-<flags>"; empty if there
  // is no trace.
  std::string Traceparent() const;

  // The trace if it is sampled, which is worth naming where people look for
  // one; else empty.
  absl::string_view sampled_id() const {
    return (flags & 1) != 0 ? trace_id : absl::string_view();
  }

  bool operator==(const TraceContext&) const = default;
};

// Bytes of a tracestate; a longer one is dropped.
inline constexpr size_t kMaxTracestateBytes = 512;

// Reads a traceparent: version 00 exactly, later ones as far as they are known.
// `span_id` is the caller's. Without a trace if `text` is not one.
TraceContext ParseTraceparent(absl::string_view text);

// Whether `text` is made of key=value members as the specification has them.
bool IsTracestate(absl::string_view text);

// The caller's trace with a span of this hop's, or a new trace if `traceparent`
// is not valid; its state only if both are valid.
TraceContext ContinueTrace(absl::string_view traceparent,
                           absl::string_view tracestate);

// The same trace with another span of this process.
TraceContext NewSpan(TraceContext trace);

// A trace that begins here.
TraceContext NewTrace();

// The trace that this process gives to `name`, always the same, with a new span
// each time.
TraceContext TraceOf(absl::string_view name);

// 32 hexadecimal digits, different each time.
std::string NewRequestId();

// Whether `text`, from a caller, may stand in logs and metadata: 1 to 128
// letters, digits, '.', '_', '-', ':' or '/'.
bool IsRequestId(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_TRACE_CONTEXT_H_
