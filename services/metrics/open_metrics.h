// Metric families in the text format of OpenMetrics 1.0.0,
// https://prometheus.io/docs/specs/om/open_metrics_spec. prometheus-cpp writes
// only the older text format, which has no exemplars. Pure. For the .cc files
// of this room only.

#ifndef SERVICES_METRICS_OPEN_METRICS_H_
#define SERVICES_METRICS_OPEN_METRICS_H_

#include <prometheus/metric_family.h>

#include <functional>
#include <string>
#include <vector>

#include "services/metrics/exemplars.h"

namespace gshard {

// Exemplars of a histogram, by bucket; empty if there are none.
using ExemplarsOf = std::function<std::vector<Exemplar>(
    const std::string& family, const prometheus::ClientMetric& histogram)>;

// The body of a response, "# EOF" included. A counter's family loses its
// "_total", a gauge whose name ends in "_info" becomes an info, and the unit is
// taken from the name.
// REQUIRES: counters, gauges and histograms, named by the rules of metrics.h.
std::string OpenMetricsText(
    const std::vector<prometheus::MetricFamily>& families,
    const ExemplarsOf& exemplars_of);

}  // namespace gshard

#endif  // SERVICES_METRICS_OPEN_METRICS_H_
