// Metrics of an exchange with expert workers.

#ifndef SERVICES_EXCHANGE_EXCHANGE_METRICS_H_
#define SERVICES_EXCHANGE_EXCHANGE_METRICS_H_

#include <memory>

#include "services/exchange/worker_counts.h"
#include "services/metrics/metrics.h"

namespace gshard {

// A default-constructed object ignores all updates. Cheap to copy, thread-safe.
struct ExchangeMetrics {
  ExchangeMetrics() = default;
  explicit ExchangeMetrics(Metrics& metrics);

  Counter sent_bytes;      // of tensors
  Counter received_bytes;  // of tensors
  Counter lost_choices;
  std::shared_ptr<WorkerCounts> workers = std::make_shared<WorkerCounts>();
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_EXCHANGE_METRICS_H_
