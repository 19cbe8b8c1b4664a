#include "services/rpc/wire/tracer.h"

#include <utility>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/base/check.h"
#include "services/trace/sampling.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

int64_t NanosSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() -
                                                              start)
      .count();
}

// A server that rejects an invalid call works as intended: that is not an error
// of its span.
bool IsError(SpanKind kind, absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return false;
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return kind != SpanKind::kServer;
  }
}

}  // namespace

OpenSpan::~OpenSpan() { End(absl::CancelledError()); }

OpenSpan& OpenSpan::operator=(OpenSpan&& other) noexcept {
  End(absl::CancelledError());
  context_ = std::move(other.context_);
  recording_ = std::move(other.recording_);
  return *this;
}

void OpenSpan::Set(absl::string_view key, int64_t value) {
  if (recorded()) recording_->span.attributes.emplace_back(key, value);
}

void OpenSpan::Set(absl::string_view key, absl::string_view value) {
  if (!recorded()) return;
  recording_->span.attributes.emplace_back(key, std::string(value));
}

void OpenSpan::SetMethod(absl::string_view method) {
  if (!recorded()) return;
  absl::ConsumePrefix(&method, "/");
  recording_->span.name = std::string(method);
  const size_t slash = method.find('/');
  Set("rpc.system", "grpc");
  Set("rpc.service", method.substr(0, slash));
  Set("rpc.method", slash == method.npos ? "" : method.substr(slash + 1));
}

void OpenSpan::StartAt(Clock::time_point start) {
  if (recorded()) recording_->start = start;
}

void OpenSpan::End(const absl::Status& status) {
  if (!recorded()) return;
  const std::unique_ptr<Recording> recording = std::move(recording_);
  Span& span = recording->span;
  // The wall clock is read once, and the length is that of the steady clock, so
  // that a change of the wall clock does not distort the span.
  span.end_nanos = absl::GetCurrentTimeNanos();
  span.start_nanos = span.end_nanos - NanosSince(recording->start);
  if (span.kind != SpanKind::kInternal) {
    span.attributes.emplace_back("rpc.grpc.status_code",
                                 static_cast<int64_t>(status.code()));
  }
  if (IsError(span.kind, status.code())) {
    span.error = absl::StatusCodeToString(status.code());
  }
  recording->exporter->Add(std::move(span));
}

Tracer Tracer::Create() {
  Tracer tracer;
  tracer.state_ = std::make_shared<State>();
  return tracer;
}

void Tracer::ExportTo(std::shared_ptr<SpanExporter> exporter,
                      double ratio) const {
  CHECK(state_ != nullptr && !state_->on);
  state_->exporter = std::move(exporter);
  state_->ratio = ratio;
  state_->on.store(true, std::memory_order_release);
}

TraceContext Tracer::Sampled(TraceContext trace) const {
  if (state_ != nullptr && state_->on.load(std::memory_order_acquire) &&
      IsSampled(trace.trace_id, state_->ratio)) {
    trace.flags |= 1;
  }
  return trace;
}

OpenSpan Tracer::Serve(absl::string_view traceparent,
                       absl::string_view tracestate,
                       absl::string_view name) const {
  const TraceContext parent = ParseTraceparent(traceparent);
  TraceContext context = ContinueTrace(traceparent, tracestate);
  if (parent.trace_id.empty()) context = Sampled(std::move(context));
  return Start(std::move(context), parent.span_id, name, SpanKind::kServer);
}

OpenSpan Tracer::Child(const TraceContext& parent, absl::string_view name,
                       SpanKind kind) const {
  if (!Records(parent)) return OpenSpan(parent);
  return Start(NewSpan(parent), parent.span_id, name, kind);
}

OpenSpan Tracer::Root(const TraceContext& context, absl::string_view name,
                      SpanKind kind) const {
  return Start(context, "", name, kind);
}

OpenSpan Tracer::Start(TraceContext context, std::string parent_id,
                       absl::string_view name, SpanKind kind) const {
  OpenSpan span(std::move(context));
  if (!Records(span.context_)) return span;
  span.recording_ = std::make_unique<OpenSpan::Recording>(
      OpenSpan::Recording{.exporter = state_->exporter,
                          .start = Clock::now(),
                          .span = {.trace_id = span.context_.trace_id,
                                   .span_id = span.context_.span_id,
                                   .parent_id = std::move(parent_id),
                                   .name = std::string(name),
                                   .kind = kind}});
  return span;
}

std::vector<TraceContext> ContextsOf(const std::vector<OpenSpan>& spans) {
  std::vector<TraceContext> contexts;
  for (const OpenSpan& span : spans) contexts.push_back(span.context());
  return contexts;
}

}  // namespace gshard
