// Metrics: the counters, gauges and histograms of one process.
//
//   Metrics metrics("router", "1.2.0");
//   Counter tokens = metrics.AddCounter("gshard_decoded_tokens_total",
//                                       "Tokens of hypotheses.");
//   CounterFamily requests = metrics.AddCounterFamily(
//       "gshard_translate_requests_total", "Translate calls.", {"code"});
//   requests.With({"OK"}).Increment();
//
// Names consist of "gshard_", words joined by '_', the base unit (seconds,
// bytes, ratio) if there is one, and "_total" for counters only. A label must
// have few values: never text, users or addresses. Metrics without labels exist
// from the start with the value 0, labelled ones from their first With(), so
// that rates are correct from the first event on.

#ifndef SERVICES_METRICS_METRICS_H_
#define SERVICES_METRICS_METRICS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/metrics/metrics_format.h"

namespace gshard {

// Handles: cheap to copy, thread-safe, valid as long as their Metrics, unless
// their series is removed. A default-constructed handle ignores all updates.

// A value that only grows.
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

// A value that goes up and down.
class Gauge {
 public:
  Gauge() = default;
  void Set(double value) const;
  void Add(double by) const;
  double Value() const;

 private:
  friend class Metrics;
  explicit Gauge(void* metric) : metric_(metric) {}
  void* metric_ = nullptr;
};

// Counts observations by bucket.
class Histogram {
 public:
  Histogram() = default;
  // `trace_id` is the id of a recorded trace, 32 hexadecimal digits, or empty.
  // Each bucket shows its last one as its exemplar.
  void Observe(double value, absl::string_view trace_id = {}) const;

 private:
  friend class Metrics;
  explicit Histogram(void* metric) : metric_(metric) {}
  void* metric_ = nullptr;
};

// The metrics of one name, distinguished by labels.
template <typename Metric>
class MetricFamily {
 public:
  MetricFamily() = default;

  // The metric with these label values, in the order of the label names. Takes
  // a lock: keep the handle on hot paths. Once there are as many combinations
  // as the family may have, which is logged, the first value of new ones
  // becomes "other"; the values of other labels, such as codes, stay what they
  // are, so they must be few. REQUIRES: as many values as labels.
  Metric With(const std::vector<std::string>& values) const {
    return find_ ? find_(values) : Metric();
  }

  // Ends the series with these label values, if there is one: its handles must
  // not be used any more. Another With() begins it anew.
  void Remove(const std::vector<std::string>& values) const
      requires(!std::is_same_v<Metric, Histogram>) {
    if (remove_) remove_(values);
  }

 private:
  friend class Metrics;
  std::function<Metric(const std::vector<std::string>&)> find_;
  std::function<void(const std::vector<std::string>&)> remove_;
};
using CounterFamily = MetricFamily<Counter>;
using GaugeFamily = MetricFamily<Gauge>;
using HistogramFamily = MetricFamily<Histogram>;

// Maximum number of label combinations of one family, unless it has its own;
// that of families by layer and expert: 64 layers of 2,048 experts.
inline constexpr size_t kMaxSeries = 4096;
inline constexpr size_t kMaxExpertSeries = 131'072;

// Upper bounds of buckets: durations in seconds, from 0.5 ms to 60 s; sizes in
// rows, tokens or bytes, from 1 to 2^30 by factors of 8.
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

  // Each name may be added once, regardless of "_total". REQUIRES: the name
  // follows the rules above, labels are lower-case words joined by '_', buckets
  // ascend.
  Counter AddCounter(absl::string_view name, absl::string_view help);
  Gauge AddGauge(absl::string_view name, absl::string_view help);
  Histogram AddHistogram(
      absl::string_view name, absl::string_view help,
      const std::vector<double>& buckets = DurationBuckets());

  CounterFamily AddCounterFamily(absl::string_view name, absl::string_view help,
                                 std::vector<std::string> labels,
                                 size_t max_series = kMaxSeries);
  GaugeFamily AddGaugeFamily(absl::string_view name, absl::string_view help,
                             std::vector<std::string> labels);
  HistogramFamily AddHistogramFamily(
      absl::string_view name, absl::string_view help,
      std::vector<std::string> labels,
      const std::vector<double>& buckets = DurationBuckets());

  // A gauge whose value `read` computes at each scrape. `read` must be
  // thread-safe and fast, must stay valid as long as this object, and must not
  // add metrics.
  void AddCallbackGauge(absl::string_view name, absl::string_view help,
                        std::function<double()> read);

  // All metrics; exemplars only in OpenMetrics.
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
