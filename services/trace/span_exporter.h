// SpanExporter: sends spans to an OTLP/HTTP collector, such as OpenTelemetry's,
// in batches, on its own thread. It never blocks callers: spans that do not fit
// the queue or cannot be delivered are counted and dropped.

#ifndef SERVICES_TRACE_SPAN_EXPORTER_H_
#define SERVICES_TRACE_SPAN_EXPORTER_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"
#include "services/http/http_client.h"
#include "services/metrics/metrics.h"
#include "services/trace/span.h"
#include "services/trace/span_queue.h"

namespace gshard {

// Default-constructed: ignores everything. Must not outlive the Metrics, unless
// the exporter is shut down.
struct SpanMetrics {
  SpanMetrics() = default;
  explicit SpanMetrics(Metrics& metrics);

  Counter exported;
  // Dropped spans: queue full; refused by the collector; not delivered after
  // all attempts; left at shutdown.
  Counter queue_full, refused, unreachable, shutdown;
};

struct SpanExporterOptions {
  std::string endpoint = {};              // see IsEndpointUrl()
  std::vector<std::string> headers = {};  // "name: value", in no log
  SpanResource resource = {};
  SpanQueueLimits queue = {};

  // Maximum attempts per batch. The pause doubles each time, or is the
  // collector's Retry-After if longer, at most `max_retry_after`; spans that
  // arrive meanwhile wait in the queue.
  int attempts = 4;
  std::chrono::milliseconds first_delay{250};
  std::chrono::milliseconds max_retry_after{30'000};
  // Timeout of a request, and of Shutdown(). A collector only has to queue the
  // spans.
  std::chrono::milliseconds timeout{1'000};
};

// Whether a batch with this response should be retried.
bool MayBeTakenLater(const HttpResponse& response);

// How long to wait before the retry, at least `delay`.
std::chrono::milliseconds RetryPause(const HttpResponse& response,
                                     std::chrono::milliseconds delay,
                                     std::chrono::milliseconds max_retry_after,
                                     absl::Time now);

// Thread-safe.
class SpanExporter {
 public:
  explicit SpanExporter(SpanExporterOptions options, SpanMetrics metrics = {});
  // Shuts down.
  ~SpanExporter();

  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  // Never blocks on the collector.
  void Add(Span span) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends remaining spans, for at most a request's timeout, and stops. Spans
  // added later are ignored.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Post(const std::vector<Span>& batch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Timeout of the next attempt; nothing if there is to be none.
  std::optional<std::chrono::milliseconds> Timeout()
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Lose(const Counter& counter, size_t spans, const absl::Status& why);

  const SpanExporterOptions options_;
  const SpanMetrics metrics_;

  // Used only by the thread.
  HttpClient http_;
  std::optional<Clock::time_point> logged_;
  size_t lost_ = 0;  // since then

  Mutex mutex_;
  CondVar changed_;
  SpanQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point end_ ABSL_GUARDED_BY(mutex_);  // once it is stopping

  Mutex join_mutex_;  // one Shutdown() at a time
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_TRACE_SPAN_EXPORTER_H_
