// MetricsFormat: the two text formats of a scrape's response, and the choice
// between them and of their encoding.

#ifndef SERVICES_METRICS_METRICS_FORMAT_H_
#define SERVICES_METRICS_METRICS_FORMAT_H_

#include "absl/strings/string_view.h"

namespace gshard {

enum class MetricsFormat {
  kText,         // Prometheus' own format, which all scrapers read
  kOpenMetrics,  // 1.0.0, with units and exemplars
};

// The format for an HTTP header "Accept", with ranges, parameters and q values
// as in RFC 9110. OpenMetrics only if the header names it and does not prefer
// text; ranges that are not recognized are ignored.
MetricsFormat AcceptedFormat(absl::string_view accept);

// Whether an HTTP header "Accept-Encoding" names gzip, or all codings, without
// refusing it; likewise as in RFC 9110.
bool AcceptsGzip(absl::string_view accept_encoding);

// The value of "Content-Type".
absl::string_view ContentType(MetricsFormat format);

}  // namespace gshard

#endif  // SERVICES_METRICS_METRICS_FORMAT_H_
