// What Metrics and MetricsServer share; for their .cc files only.

#ifndef SERVICES_METRICS_METRICS_IMPL_H_
#define SERVICES_METRICS_METRICS_IMPL_H_

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/metrics/metrics.h"

namespace gshard {

class Metrics::Impl final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;

  prometheus::Registry registry;

  mutable std::mutex mutex;
  std::set<std::string> names;
  // Metrics that are read at each scrape.
  std::vector<std::function<prometheus::MetricFamily()>> callbacks;
};

}  // namespace gshard

#endif  // SERVICES_METRICS_METRICS_IMPL_H_
