// What Metrics and MetricsServer share; for their .cc files only.

#ifndef SERVICES_METRICS_METRICS_IMPL_H_
#define SERVICES_METRICS_METRICS_IMPL_H_

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/base/mutex.h"
#include "services/metrics/metrics.h"

namespace gshard {

class Metrics::Impl final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;

  prometheus::Registry registry;

  mutable Mutex mutex;
  std::set<std::string> names ABSL_GUARDED_BY(mutex);
  // Metrics that are read at each scrape.
  std::vector<std::function<prometheus::MetricFamily()>> callbacks
      ABSL_GUARDED_BY(mutex);
};

}  // namespace gshard

#endif  // SERVICES_METRICS_METRICS_IMPL_H_
