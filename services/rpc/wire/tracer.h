// Tracer: makes the spans of a process, for traces that are sampled, and hands
// those that are over to its exporter.
//
//   OpenSpan span = tracer.Child(trace, "encode");
//   {
//     const TraceScope scope(span.context());
//     status = Encode();
//   }
//   span.End(status);
//
// Where nothing is recorded, for want of an exporter or of the sampled bit, a
// child's context is its parent's, and nothing is spent on it.

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
  // Not recorded.
  explicit OpenSpan(TraceContext context = {}) : context_(std::move(context)) {}
  // What nobody has ended was given up: CANCELLED.
  ~OpenSpan();

  OpenSpan(OpenSpan&& other) noexcept = default;
  OpenSpan& operator=(OpenSpan&& other) noexcept;

  // What is done for the span has this as its parent.
  const TraceContext& context() const { return context_; }
  bool recorded() const { return recording_ != nullptr; }

  // None of these does anything to a span that is not recorded, or over.
  void Set(absl::string_view key, int64_t value);
  void Set(absl::string_view key, absl::string_view value);
  // Of a call: "/package.Service/Method", which names it.
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
  std::unique_ptr<Recording> recording_;  // null: not recorded, or over
};

// A handle: cheap to copy. Thread-safe. A default-constructed one records
// nothing, ever.
class Tracer {
 public:
  Tracer() = default;

  // One that records nothing until ExportTo().
  static Tracer Create();
  // To be called once: from now on spans are recorded, and traces that begin
  // here are sampled with `ratio`.
  void ExportTo(std::shared_ptr<SpanExporter> exporter, double ratio) const;

  // A trace that begins here, with the bit that says whether it is sampled.
  TraceContext Sampled(TraceContext trace) const;

  // A span of the caller's trace, as ContinueTrace() has it, for what is served
  // here; of a trace that begins here if the caller's is not valid.
  OpenSpan Serve(absl::string_view traceparent, absl::string_view tracestate,
                 absl::string_view name) const;
  // The same for a child of a span of this process.
  OpenSpan Child(const TraceContext& parent, absl::string_view name,
                 SpanKind kind = SpanKind::kInternal) const;
  // The span that `context` names, without a parent.
  OpenSpan Root(const TraceContext& context, absl::string_view name,
                SpanKind kind = SpanKind::kInternal) const;

 private:
  struct State {
    std::shared_ptr<SpanExporter> exporter;
    double ratio = 0;
    std::atomic<bool> on = false;  // set after the others
  };

  bool Records(const TraceContext& trace) const {
    return state_ != nullptr && (trace.flags & 1) != 0 &&
           state_->on.load(std::memory_order_acquire);
  }
  OpenSpan Start(TraceContext context, std::string parent_id,
                 absl::string_view name, SpanKind kind) const;

  std::shared_ptr<State> state_;
};

// The contexts of spans.
std::vector<TraceContext> ContextsOf(const std::vector<OpenSpan>& spans);

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_TRACER_H_
