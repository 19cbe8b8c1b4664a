#include "services/trace/span_exporter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/base/log.h"
#include "services/http/http_time.h"
#include "services/trace/otlp_json.h"

namespace gshard {
namespace {

constexpr std::chrono::minutes kLogInterval{1};

}  // namespace

SpanMetrics::SpanMetrics(Metrics& metrics)
    : exported(metrics.AddCounter("gshard_spans_exported_total",
                                  "Spans that the collector has taken.")) {
  const CounterFamily dropped = metrics.AddCounterFamily(
      "gshard_spans_dropped_total",
      "Spans that the collector does not get: too many waited for it, it "
      "refused them or could not be reached, or the process has ended.",
      {"reason"});
  queue_full = dropped.With({"queue_full"});
  refused = dropped.With({"refused"});
  unreachable = dropped.With({"unreachable"});
  shutdown = dropped.With({"shutdown"});
}

bool MayBeTakenLater(const HttpResponse& response) {
  if (!response.transfer.ok()) return true;
  switch (response.code) {
    case 429:
    case 502:
    case 503:
    case 504:
      return true;
    default:
      return false;
  }
}

std::chrono::milliseconds RetryPause(const HttpResponse& response,
                                     std::chrono::milliseconds delay,
                                     std::chrono::milliseconds max_retry_after,
                                     absl::Time now) {
  const auto asked = ParseRetryAfter(response.header("retry-after"), now);
  if (!asked.has_value()) return delay;
  return std::max(delay, absl::ToChronoMilliseconds(std::min(
                             *asked, absl::FromChrono(max_retry_after))));
}

SpanExporter::SpanExporter(SpanExporterOptions options, SpanMetrics metrics)
    : options_(std::move(options)),
      metrics_(std::move(metrics)),
      queue_(options_.queue),
      thread_([this] { Run(); }) {}

SpanExporter::~SpanExporter() { Shutdown(); }

void SpanExporter::Add(Span span) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  const Clock::time_point next = queue_.NextBatch();
  if (!queue_.Add(std::move(span), Clock::now())) {
    metrics_.queue_full.Increment();
  } else if (queue_.NextBatch() != next) {
    changed_.NotifyAll();
  }
}

void SpanExporter::Shutdown() {
  MutexLock join_lock(join_mutex_);
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    end_ = Clock::now() + options_.timeout;
    changed_.NotifyAll();
  }
  thread_.join();
}

void SpanExporter::Run() {
  MutexLock lock(mutex_);
  while (true) {
    const Clock::time_point next = queue_.NextBatch();
    if (queue_.size() == 0) {
      if (stopping_) return;
      changed_.Wait(lock);
    } else if (!stopping_ && next > Clock::now()) {
      changed_.WaitUntil(lock, next);
    } else {
      const std::vector<Span> batch = queue_.Take();
      lock.Unlock();
      Post(batch);
      lock.Lock();
    }
  }
}

std::optional<std::chrono::milliseconds> SpanExporter::Timeout() {
  MutexLock lock(mutex_);
  if (!stopping_) return options_.timeout;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      end_ - Clock::now());
  if (left.count() <= 0) return std::nullopt;
  return left;
}

void SpanExporter::Post(const std::vector<Span>& batch) {
  const std::string body = OtlpJson(options_.resource, batch);
  std::vector<std::string> headers = {"Content-Type: application/json"};
  headers.insert(headers.end(), options_.headers.begin(),
                 options_.headers.end());
  std::chrono::milliseconds delay = options_.first_delay;
  absl::Status status;
  for (int attempt = 1; attempt <= options_.attempts; ++attempt, delay *= 2) {
    const auto timeout = Timeout();
    if (!timeout.has_value()) {
      return metrics_.shutdown.Increment(static_cast<double>(batch.size()));
    }
    const HttpResponse response =
        http_.Send({.method = "POST",
                    .url = absl::StrCat(options_.endpoint, "/v1/traces"),
                    .headers = headers,
                    .body = body,
                    .timeout = *timeout});
    if (response.transfer.ok() && response.code / 100 == 2) {
      const OtlpRefusal refusal = ParseOtlpAnswer(response.body);
      const size_t refused = static_cast<size_t>(std::clamp(
          refusal.spans, int64_t{0}, static_cast<int64_t>(batch.size())));
      metrics_.exported.Increment(static_cast<double>(batch.size() - refused));
      if (refused == 0) return;
      return Lose(metrics_.refused, refused,
                  absl::InvalidArgumentError(refusal.why));
    }
    status = response.transfer.ok()
                 ? absl::UnavailableError(absl::StrCat("HTTP ", response.code))
                 : response.transfer;
    if (!MayBeTakenLater(response)) {
      return Lose(metrics_.refused, batch.size(), status);
    }
    if (attempt == options_.attempts) break;
    const auto pause =
        RetryPause(response, delay, options_.max_retry_after, absl::Now());
    MutexLock lock(mutex_);
    changed_.WaitFor(
        lock, pause,
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
  }
  Lose(metrics_.unreachable, batch.size(), status);
}

void SpanExporter::Lose(const Counter& counter, size_t spans,
                        const absl::Status& why) {
  counter.Increment(static_cast<double>(spans));
  lost_ += spans;
  const Clock::time_point now = Clock::now();
  if (logged_.has_value() && now - *logged_ < kLogInterval) return;
  LogWarning("the collector does not take spans",
             {{"otlp_endpoint", options_.endpoint},
              {"status", why},
              {"spans_lost", std::exchange(lost_, 0)}});
  logged_ = now;
}

}  // namespace gshard
