// MetricsServer: serves Metrics over HTTP at /metrics, for Prometheus to
// scrape. The format depends on the request's "Accept"; responses are gzipped
// if the client accepts that.

#ifndef SERVICES_METRICS_METRICS_SERVER_H_
#define SERVICES_METRICS_METRICS_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/metrics/metrics.h"

namespace gshard {

class MetricsServer {
 public:
  // Serves on "host:port"; port 0 takes any free one. `host` is a numeric
  // address, in brackets if IPv6. `metrics` may be destroyed first: scrapes
  // then show its last values, without callback gauges.
  //
  // Errors: InvalidArgument if `address` is not of that form; Unavailable, with
  // the HTTP library's message, if it cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      absl::string_view address, const Metrics& metrics);

  ~MetricsServer();

  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // The address with the port that was bound, e.g. "0.0.0.0:38211".
  const std::string& address() const { return address_; }

 private:
  class Impl;
  MetricsServer();

  std::string address_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gshard

#endif  // SERVICES_METRICS_METRICS_SERVER_H_
