// Implementation shared by Metrics and MetricsServer; for their .cc files only.

#ifndef SERVICES_METRICS_METRICS_IMPL_H_
#define SERVICES_METRICS_METRICS_IMPL_H_

#include <prometheus/histogram.h>
#include <prometheus/labels.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/base/mutex.h"
#include "services/metrics/exemplars.h"
#include "services/metrics/metrics.h"

namespace gshard {

// The target of a Histogram handle.
struct ObservedHistogram {
  prometheus::Histogram& counts;
  Exemplars exemplars;
};

class Metrics::Impl {
 public:
  std::string Serialize(MetricsFormat format) const ABSL_LOCKS_EXCLUDED(mutex);

  prometheus::Registry registry;

  mutable Mutex mutex;
  std::set<std::string> names ABSL_GUARDED_BY(mutex);  // without "_total"
  // By name and labels.
  std::map<std::pair<std::string, prometheus::Labels>,
           std::unique_ptr<ObservedHistogram>>
      histograms ABSL_GUARDED_BY(mutex);
  // Metrics that are read at each scrape.
  std::vector<std::function<prometheus::MetricFamily()>> callbacks
      ABSL_GUARDED_BY(mutex);

 private:
  // All families, sorted by name.
  std::vector<prometheus::MetricFamily> Collect() const
      ABSL_LOCKS_EXCLUDED(mutex);
};

}  // namespace gshard

#endif  // SERVICES_METRICS_METRICS_IMPL_H_
