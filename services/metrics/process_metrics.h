// The process_* metrics that every Prometheus client library has, from /proc.
// For the .cc files of this room only.

#ifndef SERVICES_METRICS_PROCESS_METRICS_H_
#define SERVICES_METRICS_PROCESS_METRICS_H_

#include <prometheus/metric_family.h>

#include <vector>

namespace gshard {

// CPU seconds, resident bytes, open files and the start time. Those that /proc
// does not provide are omitted.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace gshard

#endif  // SERVICES_METRICS_PROCESS_METRICS_H_
