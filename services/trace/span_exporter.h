// SpanExporter: hands spans to a collector that speaks OTLP over HTTP, such as
// OpenTelemetry's, in batches, on a thread of its own. Nobody waits for it:
// what it has no room for, or cannot deliver, is counted and gone.

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

// Default-constructed: ignores everything. Must not outlive the Metrics, but
// for an exporter that is shut down.
struct SpanMetrics {
  SpanMetrics() = default;
  explicit SpanMetrics(Metrics& metrics);

  Counter exported;
  // Dropped: no room in the queue; refused by the collector; not taken by it
  // when tried often enough; left at the end of the process.
  Counter queue_full, refused, unreachable, shutdown;
};

struct SpanExporterOptions {
  std::string endpoint = {};              // as IsEndpointUrl() wants it
  std::vector<std::string> headers = {};  // "name: value", in no log
  SpanResource resource = {};
  SpanQueueLimits queue = {};

  // A batch is sent so often, with twice as long a pause after each time, or
  // the longer one that the collector asks for by Retry-After,
  // `max_retry_after` at most: what comes meanwhile waits in the queue.
  int attempts = 4;
  std::chrono::milliseconds first_delay{250};
  std::chrono::milliseconds max_retry_after{30'000};
  // Of a request, and of Shutdown(). A collector only has to queue what it
  // gets.
  std::chrono::milliseconds timeout{1'000};
};

// Whether a batch that was answered so may be taken if it is sent again.
bool MayBeTakenLater(const HttpResponse& response);

// How long to wait before that; `delay` is meant to be waited at least.
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

  // Returns at once, whatever the collector does.
  void Add(Span span) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends what is there, for as long as a request may take, and ends. What is
  // added later is ignored.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Post(const std::vector<Span>& batch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the next attempt; nothing if none is to be made any more.
  std::optional<std::chrono::milliseconds> Timeout()
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Lose(const Counter& counter, size_t spans, const absl::Status& why);

  const SpanExporterOptions options_;
  const SpanMetrics metrics_;

  // Of the thread.
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
