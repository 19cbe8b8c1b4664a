// Tracer: creates the spans of a process for sampled traces, and passes
// completed spans to its exporter.
//
//   OpenSpan span = tracer.Child(trace, "encode");
//   {
//     const TraceScope scope(span.context());
//     status = Encode();
//   }
//   span.End(status);
//
// If nothing is recorded, because there is no exporter or the trace is not
// sampled, a child's context is its parent's, and the span costs nothing.

#ifndef SERVICES_RPC_WIRE_TRACER_H_
#define SERVICES_RPC_WIRE_TRACER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/rpc/wire/trace_context.h"
#include "services/trace/span.h"
#include "services/trace/span_exporter.h"

namespace gshard {

// Not thread-safe.
class OpenSpan {
 public:
  // A span that is not recorded.
  explicit OpenSpan(TraceContext context = {}) : context_(std::move(context)) {}
  // Ends a span that is still open with CANCELLED: it was abandoned.
  ~OpenSpan();

  OpenSpan(OpenSpan&& other) noexcept = default;
  OpenSpan& operator=(OpenSpan&& other) noexcept;

  // The parent context for work done within this span.
  const TraceContext& context() const { return context_; }
  bool recorded() const { return recording_ != nullptr; }

  // No effect on a span that is not recorded or has ended.
  void Set(absl::string_view key, int64_t value);
  void Set(absl::string_view key, absl::string_view value);
  // For a span of a call: "/package.Service/Method". Sets the span's name and
  // the rpc.* attributes.
  void SetMethod(absl::string_view method);
  void StartAt(std::chrono::steady_clock::time_point start);
  void End(const absl::Status& status = absl::OkStatus());

 private:
  friend class Tracer;

  struct Recording {
    std::shared_ptr<SpanExporter> exporter;
    std::chrono::steady_clock::time_point start;
    Span span;
  };

  TraceContext context_;
  std::unique_ptr<Recording> recording_;  // null: not recorded, or ended
};

// A handle: cheap to copy. Thread-safe. A default-constructed one never records
// anything.
class Tracer {
 public:
  Tracer() = default;

  // A tracer that records nothing until ExportTo().
  static Tracer Create();
  // Call once. From then on spans are recorded, and new traces are sampled with
  // probability `ratio`.
  void ExportTo(std::shared_ptr<SpanExporter> exporter, double ratio) const;

  // `trace`, which must be new, with its sampled bit set by the ratio.
  TraceContext Sampled(TraceContext trace) const;

  // A server span of the caller's trace, continued as by ContinueTrace(); of a
  // new trace if the caller's is invalid.
  OpenSpan Serve(absl::string_view traceparent, absl::string_view tracestate,
                 absl::string_view name) const;
  // A child of a span of this process.
  OpenSpan Child(const TraceContext& parent, absl::string_view name,
                 SpanKind kind = SpanKind::kInternal) const;
  // A span with the ids of `context` and no parent.
  OpenSpan Root(const TraceContext& context, absl::string_view name,
                SpanKind kind = SpanKind::kInternal) const;

 private:
  struct State {
    std::shared_ptr<SpanExporter> exporter;
    double ratio = 0;
    std::atomic<bool> on = false;  // set after the other fields
  };

  bool Records(const TraceContext& trace) const {
    return state_ != nullptr && (trace.flags & 1) != 0 &&
           state_->on.load(std::memory_order_acquire);
  }
  OpenSpan Start(TraceContext context, std::string parent_id,
                 absl::string_view name, SpanKind kind) const;

  std::shared_ptr<State> state_;
};

// The contexts of `spans`.
std::vector<TraceContext> ContextsOf(const std::vector<OpenSpan>& spans);

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_TRACER_H_
