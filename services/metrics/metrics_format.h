// MetricsFormat: the two texts in which a scrape can be answered, and which of
// them a scraper wants.

#ifndef SERVICES_METRICS_METRICS_FORMAT_H_
#define SERVICES_METRICS_METRICS_FORMAT_H_

#include "absl/strings/string_view.h"

namespace gshard {

enum class MetricsFormat {
  kText,         // Prometheus' own, which everybody reads
  kOpenMetrics,  // 1.0.0, which has units and exemplars
};

// What an HTTP header "Accept" asks for, as RFC 9110 has its ranges, parameters
// and q values. OpenMetrics is for those who name it and do not prefer text;
// ranges that are not understood do not count.
MetricsFormat AcceptedFormat(absl::string_view accept);

// The value of "Content-Type".
absl::string_view ContentType(MetricsFormat format);

}  // namespace gshard

#endif  // SERVICES_METRICS_METRICS_FORMAT_H_
