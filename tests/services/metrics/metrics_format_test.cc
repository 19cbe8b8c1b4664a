#include "services/metrics/metrics_format.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace gshard {
namespace {

TEST(MetricsFormatTest, OpenMetricsIsForWhoNamesIt) {
  for (const char* accept :
       {"application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        " Application/OpenMetrics-Text ;VERSION=1.0.0",
        "application/openmetrics-text, */*",
        "application/openmetrics-text;q=0.5, text/plain;q=0.2, */*;q=0.9",
        // As sent by Prometheus 2.42, 2.53 and 3.
        "application/openmetrics-text;version=1.0.0,"
        "application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;q=0.5,"
        "application/openmetrics-text;version=0.0.1;q=0.4,"
        "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
        "application/openmetrics-text;version=0.0.1;q=0.4,"
        "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
        "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"}) {
    EXPECT_EQ(AcceptedFormat(accept), MetricsFormat::kOpenMetrics) << accept;
  }
}

TEST(MetricsFormatTest, AllOthersGetText) {
  for (const char* accept :
       {"", "*/*", "text/plain", "text/plain;version=0.0.4", "text/html, */*",
        "application/*", "application/json", "application/openmetrics-text-2",
        // Another version, refused, or less preferred.
        "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;version=2.0.0, */*",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=0.2, text/plain;q=0.3",
        "application/openmetrics-text;q=0.2, text/*;q=0.3, */*;q=0.1",
        "application/openmetrics-text;q=0.2, */*;q=0.3",
        // Malformed values of q, and malformed headers.
        "application/openmetrics-text;q=", "application/openmetrics-text;q=x",
        "application/openmetrics-text;q=nan",
        "application/openmetrics-text;q=2", "application/openmetrics-text;q=-1",
        ",", ";", ";;,;q=1", "=", "application/openmetrics-text;q=0;q=0"}) {
    EXPECT_EQ(AcceptedFormat(accept), MetricsFormat::kText) << accept;
  }
  EXPECT_EQ(AcceptedFormat(std::string(100'000, ',')), MetricsFormat::kText);
}

TEST(MetricsFormatTest, TheClosestRangeDecidesHowMuchTextIsWanted) {
  for (const auto& [accept, format] :
       {std::pair{"application/openmetrics-text;q=0.5, text/plain;q=0.9",
                  MetricsFormat::kText},
        std::pair{"text/plain;q=0.2, text/*;q=0.9, */*;q=1, "
                  "application/openmetrics-text;q=0.5",
                  MetricsFormat::kOpenMetrics},
        std::pair{"*/*;q=1, text/*;q=0.9, text/plain;q=0.2, "
                  "application/openmetrics-text;q=0.5",
                  MetricsFormat::kOpenMetrics},
        std::pair{"*/*;q=0.1, text/*;q=0.2, text/plain;q=0.9, "
                  "application/openmetrics-text;q=0.5",
                  MetricsFormat::kText}}) {
    EXPECT_EQ(AcceptedFormat(accept), format) << accept;
  }
}

TEST(MetricsFormatTest, GzipIsForWhoAcceptsIt) {
  for (const char* accept :
       {"gzip", "deflate, GZip", "gzip;q=0.1", "gzip ; Q=1, identity;q=0", "*",
        "*;q=0, gzip", "gzip, *;q=0", "br, *;q=0.1"}) {
    EXPECT_TRUE(AcceptsGzip(accept)) << accept;
  }
  for (const char* accept :
       {"", "identity", "gzip;q=0", "gzip; q=0.000", "*;q=0", "*, gzip;q=0",
        "gzip;q=0, *", "gzip-2", "deflate, gzip;q=x", "gzip;q=2", ",;"}) {
    EXPECT_FALSE(AcceptsGzip(accept)) << accept;
  }
}

}  // namespace
}  // namespace gshard
