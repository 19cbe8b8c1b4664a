// Families of metrics as OpenMetrics 1.0.0 writes them,
// https://prometheus.io/docs/specs/om/open_metrics_spec: prometheus-cpp writes
// only the older text, which has no exemplars. Pure. For the .cc files of this
// room only.

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

// The body of an answer, "# EOF" included. A counter's family goes without its
// "_total", a gauge whose name ends in "_info" is an info; the unit is that of
// the name.
// REQUIRES: counters, gauges and histograms, named as metrics.h has it.
std::string OpenMetricsText(
    const std::vector<prometheus::MetricFamily>& families,
    const ExemplarsOf& exemplars_of);

}  // namespace gshard

#endif  // SERVICES_METRICS_OPEN_METRICS_H_
