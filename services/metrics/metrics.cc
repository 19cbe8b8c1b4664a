#include "services/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/metrics/metrics_impl.h"
#include "services/metrics/open_metrics.h"
#include "services/metrics/process_metrics.h"

namespace gshard {
namespace {

using Values = std::vector<std::string>;

bool IsName(absl::string_view name) {
  const auto allowed = [](char c) {
    return ('a' <= c && c <= 'z') || ('0' <= c && c <= '9') || c == '_';
  };
  return !name.empty() && 'a' <= name[0] && name[0] <= 'z' &&
         std::all_of(name.begin(), name.end(), allowed);
}

// The metrics of a family by label values; creates new ones.
template <typename Metric>
class Series {
 public:
  using Make = std::function<Metric&(const prometheus::Labels&)>;

  Series(absl::string_view name, Values labels, Make make,
         size_t most = kMaxSeries)
      : name_(name),
        labels_(std::move(labels)),
        make_(std::move(make)),
        most_(most) {}

  Metric* Find(const Values& values) {
    CHECK(values.size() == labels_.size());
    MutexLock lock(mutex_);
    if (const auto found = metrics_.find(values); found != metrics_.end()) {
      return found->second;
    }
    const bool full = metrics_.size() >= most_;
    if (full && !std::exchange(told_, true)) {
      LogWarning(
          "a metric has no room for more values of its first label; they "
          "become \"other\"",
          {{"metric", name_}, {"most", most_}});
    }
    Values kept = values;
    if (full) kept.front() = "other";
    if (const auto found = metrics_.find(kept); found != metrics_.end()) {
      return found->second;
    }
    prometheus::Labels labels;
    for (size_t i = 0; i < labels_.size(); ++i) labels[labels_[i]] = kept[i];
    return metrics_[kept] = &make_(labels);
  }

  void Remove(const Values& values, prometheus::Family<Metric>& family) {
    MutexLock lock(mutex_);
    const auto found = metrics_.find(values);
    if (found == metrics_.end()) return;
    family.Remove(found->second);
    metrics_.erase(found);
  }

 private:
  const std::string name_;
  const Values labels_;
  const Make make_;
  const size_t most_;
  Mutex mutex_;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<Values, Metric*> metrics_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void Counter::Increment(double by) const {
  if (metric_ == nullptr) return;
  static_cast<prometheus::Counter*>(metric_)->Increment(by);
}

double Counter::Value() const {
  if (metric_ == nullptr) return 0;
  return static_cast<prometheus::Counter*>(metric_)->Value();
}

void Gauge::Set(double value) const {
  if (metric_ == nullptr) return;
  static_cast<prometheus::Gauge*>(metric_)->Set(value);
}

void Gauge::Add(double by) const {
  if (metric_ == nullptr) return;
  static_cast<prometheus::Gauge*>(metric_)->Increment(by);
}

double Gauge::Value() const {
  if (metric_ == nullptr) return 0;
  return static_cast<prometheus::Gauge*>(metric_)->Value();
}

void Histogram::Observe(double value, absl::string_view trace_id) const {
  if (metric_ == nullptr) return;
  auto& metric = *static_cast<ObservedHistogram*>(metric_);
  metric.counts.Observe(value);
  if (!trace_id.empty()) metric.exemplars.Add(value, trace_id, absl::Now());
}

const std::vector<double>& DurationBuckets() {
  static const std::vector<double>& buckets = *new std::vector<double>{
      0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
      0.25,   0.5,   1,      2.5,   5,    10,    30,   60};
  return buckets;
}

const std::vector<double>& SizeBuckets() {
  static const std::vector<double>& buckets = *new std::vector<double>{
      1,      8,       64,       512,       4096,      32768,
      262144, 2097152, 16777216, 134217728, 1073741824};
  return buckets;
}

std::vector<prometheus::MetricFamily> Metrics::Impl::Collect() const {
  std::vector<prometheus::MetricFamily> families = registry.Collect();
  {
    // Held while reading: ~Metrics() waits for a scrape in progress.
    MutexLock lock(mutex);
    for (const auto& callback : callbacks) families.push_back(callback());
  }
  for (auto& metric : ProcessMetrics()) families.push_back(std::move(metric));
  std::sort(families.begin(), families.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return families;
}

std::string Metrics::Impl::Serialize(MetricsFormat format) const {
  if (format == MetricsFormat::kText) {
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, Collect());
    return text.str();
  }
  return OpenMetricsText(
      Collect(),
      [this](const std::string& name, const prometheus::ClientMetric& metric) {
        prometheus::Labels labels;
        for (const auto& label : metric.label) {
          labels[label.name] = label.value;
        }
        MutexLock lock(mutex);
        return histograms.at({name, labels})->exemplars.Last();
      });
}

Metrics::Metrics(absl::string_view role, absl::string_view version)
    : impl_(std::make_shared<Impl>()) {
  AddGaugeFamily("gshard_build_info", "Role and version of the program; 1.",
                 {"role", "version"})
      .With({std::string(role), std::string(version)})
      .Set(1);
}

Metrics::~Metrics() {
  // A MetricsServer may keep `impl_`, but the data that callbacks read may be
  // destroyed together with this object.
  MutexLock lock(impl_->mutex);
  impl_->callbacks.clear();
}

// Checks that `name` is new and follows the naming rules.
void Metrics::Register(absl::string_view name, bool counter,
                       const std::vector<std::string>& labels) {
  CHECK(IsName(name));
  CHECK(absl::StartsWith(name, "gshard_"));
  CHECK(absl::EndsWith(name, "_total") == counter);
  for (const std::string& label : labels) CHECK(IsName(label));
  absl::ConsumeSuffix(&name, "_total");
  MutexLock lock(impl_->mutex);
  CHECK(impl_->names.insert(std::string(name)).second);
}

Counter Metrics::AddCounter(absl::string_view name, absl::string_view help) {
  return AddCounterFamily(name, help, {}).With({});
}

Gauge Metrics::AddGauge(absl::string_view name, absl::string_view help) {
  return AddGaugeFamily(name, help, {}).With({});
}

Histogram Metrics::AddHistogram(absl::string_view name, absl::string_view help,
                                const std::vector<double>& buckets) {
  return AddHistogramFamily(name, help, {}, buckets).With({});
}

CounterFamily Metrics::AddCounterFamily(absl::string_view name,
                                        absl::string_view help,
                                        std::vector<std::string> labels,
                                        size_t max_series) {
  Register(name, /*counter=*/true, labels);
  auto& family = prometheus::BuildCounter()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(impl_->registry);
  auto series = std::make_shared<Series<prometheus::Counter>>(
      name, std::move(labels),
      [&family](const prometheus::Labels& l) -> prometheus::Counter& {
        return family.Add(l);
      },
      max_series);
  CounterFamily result;
  result.find_ = [series](const Values& v) { return Counter(series->Find(v)); };
  result.remove_ = [series, &family](const Values& v) {
    series->Remove(v, family);
  };
  return result;
}

GaugeFamily Metrics::AddGaugeFamily(absl::string_view name,
                                    absl::string_view help,
                                    std::vector<std::string> labels) {
  Register(name, /*counter=*/false, labels);
  auto& family = prometheus::BuildGauge()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(impl_->registry);
  auto series = std::make_shared<Series<prometheus::Gauge>>(
      name, std::move(labels),
      [&family](const prometheus::Labels& l) -> prometheus::Gauge& {
        return family.Add(l);
      });
  GaugeFamily result;
  result.find_ = [series](const Values& v) { return Gauge(series->Find(v)); };
  result.remove_ = [series, &family](const Values& v) {
    series->Remove(v, family);
  };
  return result;
}

HistogramFamily Metrics::AddHistogramFamily(
    absl::string_view name, absl::string_view help,
    std::vector<std::string> labels, const std::vector<double>& buckets) {
  Register(name, /*counter=*/false, labels);
  CHECK(std::is_sorted(buckets.begin(), buckets.end()));
  CHECK(std::adjacent_find(buckets.begin(), buckets.end()) == buckets.end());
  auto& family = prometheus::BuildHistogram()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(impl_->registry);
  auto series = std::make_shared<Series<ObservedHistogram>>(
      name, std::move(labels),
      [&family, buckets, impl = impl_.get(), name = std::string(name)](
          const prometheus::Labels& l) -> ObservedHistogram& {
        // Registered before a scrape can see it.
        MutexLock lock(impl->mutex);
        auto& metric = impl->histograms[{name, l}];
        metric.reset(new ObservedHistogram{.counts = family.Add(l, buckets),
                                           .exemplars = Exemplars(buckets)});
        return *metric;
      });
  HistogramFamily result;
  result.find_ = [series](const Values& v) {
    return Histogram(series->Find(v));
  };
  return result;
}

void Metrics::AddCallbackGauge(absl::string_view name, absl::string_view help,
                               std::function<double()> read) {
  Register(name, /*counter=*/false, {});
  MutexLock lock(impl_->mutex);
  impl_->callbacks.push_back([name = std::string(name),
                              help = std::string(help),
                              read = std::move(read)] {
    prometheus::ClientMetric metric;
    metric.gauge.value = read();
    return prometheus::MetricFamily{
        name, help, prometheus::MetricType::Gauge, {metric}};
  });
}

std::string Metrics::Serialize(MetricsFormat format) const {
  return impl_->Serialize(format);
}

}  // namespace gshard
