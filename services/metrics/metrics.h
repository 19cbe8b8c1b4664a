// Metrics: the counters, gauges and histograms of one process.
//
//   Metrics metrics("router", "1.2.0");
//   Counter tokens = metrics.AddCounter("gshard_decoded_tokens_total",
//                                       "Tokens of hypotheses.");
//   CounterFamily requests = metrics.AddCounterFamily(
//       "gshard_translate_requests_total", "Translate calls.", {"code"});
//   requests.With({"OK"}).Increment();
//
// Names: "gshard_", words joined by '_', then the base unit (seconds, bytes,
// ratio) if there is one, then "_total" for counters alone. A label has few
// values: never text, users or addresses. Metrics without labels, and labelled
// ones once With() has been called, are there from the start as 0, so that
// rates hold from the first event on.

#ifndef SERVICES_METRICS_METRICS_H_
#define SERVICES_METRICS_METRICS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/metrics/metrics_format.h"

namespace gshard {

// Handles: cheap to copy, thread-safe, valid as long as their Metrics. A
// default-constructed one ignores what it is told.

// Only grows.
class Counter {
 public:
  Counter() = default;
  // REQUIRES: by >= 0.
  void Increment(double by = 1) const;
  double Value() const;

 private:
  friend class Metrics;
  explicit Counter(void* metric) : metric_(metric) {}
  void* metric_ = nullptr;
};

// Goes up and down.
class Gauge {
 public:
  Gauge() = default;
  void Set(double value) const;
  void Add(double by) const;
  // Seconds since 1970.
  void SetToCurrentTime() const;
  double Value() const;

 private:
  friend class Metrics;
  explicit Gauge(void* metric) : metric_(metric) {}
  void* metric_ = nullptr;
};

// Counts observations by size.
class Histogram {
 public:
  Histogram() = default;
  // `trace_id` is of a trace that is recorded, 32 hexadecimal digits, or empty:
  // each bucket shows the last one as its exemplar.
  void Observe(double value, absl::string_view trace_id = {}) const;

 private:
  friend class Metrics;
  explicit Histogram(void* metric) : metric_(metric) {}
  void* metric_ = nullptr;
};

// The metrics of one name, told apart by labels.
template <typename Metric>
class MetricFamily {
 public:
  MetricFamily() = default;

  // The metric with these values of the labels, in the order of their names.
  // Takes a lock: keep the handle where it is hot. After kMaxSeries different
  // ones, new values all become "other".
  // REQUIRES: as many values as labels.
  Metric With(const std::vector<std::string>& values) const {
    return find_ ? find_(values) : Metric();
  }

 private:
  friend class Metrics;
  std::function<Metric(const std::vector<std::string>&)> find_;
};
using CounterFamily = MetricFamily<Counter>;
using GaugeFamily = MetricFamily<Gauge>;
using HistogramFamily = MetricFamily<Histogram>;

// Label combinations of one family.
inline constexpr size_t kMaxSeries = 4096;

// Upper bounds of buckets. Durations in seconds: 0.5 ms to 60 s; rows, tokens
// or bytes: 1 to 2^30 by factors of 8.
const std::vector<double>& DurationBuckets();
const std::vector<double>& SizeBuckets();

class MetricsServer;

// Thread-safe.
class Metrics {
 public:
  // Starts with gshard_build_info{role,version} = 1 and the standard
  // process_* metrics.
  Metrics(absl::string_view role, absl::string_view version);
  ~Metrics();

  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Each name once, "_total" aside. REQUIRES: the name is as above, labels are
  // lower-case words joined by '_', buckets grow.
  Counter AddCounter(absl::string_view name, absl::string_view help);
  Gauge AddGauge(absl::string_view name, absl::string_view help);
  Histogram AddHistogram(
      absl::string_view name, absl::string_view help,
      const std::vector<double>& buckets = DurationBuckets());

  CounterFamily AddCounterFamily(absl::string_view name, absl::string_view help,
                                 std::vector<std::string> labels);
  GaugeFamily AddGaugeFamily(absl::string_view name, absl::string_view help,
                             std::vector<std::string> labels);
  HistogramFamily AddHistogramFamily(
      absl::string_view name, absl::string_view help,
      std::vector<std::string> labels,
      const std::vector<double>& buckets = DurationBuckets());

  // A gauge that is asked for its value at each scrape. `read` must be
  // thread-safe, quick, and work as long as this object; it must not add
  // metrics.
  void AddCallbackGauge(absl::string_view name, absl::string_view help,
                        std::function<double()> read);

  // All of it; exemplars in OpenMetrics alone.
  std::string Serialize(MetricsFormat format = MetricsFormat::kText) const;

 private:
  friend class MetricsServer;
  class Impl;
  void Register(absl::string_view name, bool counter,
                const std::vector<std::string>& labels);
  const std::shared_ptr<Impl> impl_;
};

}  // namespace gshard

#endif  // SERVICES_METRICS_METRICS_H_
