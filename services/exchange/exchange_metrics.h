// Metrics of an exchange with expert workers.

#ifndef SERVICES_EXCHANGE_EXCHANGE_METRICS_H_
#define SERVICES_EXCHANGE_EXCHANGE_METRICS_H_

#include <string>

#include "services/metrics/metrics.h"

namespace gshard {

// A default-constructed object ignores all updates. Cheap to copy, thread-safe.
struct ExchangeMetrics {
  ExchangeMetrics() = default;
  explicit ExchangeMetrics(Metrics& metrics);

  // Creates this worker's series with the value 0.
  void DeclareWorker(const std::string& worker) const;

  Counter sent_bytes;              // of tensors
  Counter received_bytes;          // of tensors
  CounterFamily call_retries;      // by worker that failed
  CounterFamily call_hedges;       // by worker that was slow
  CounterFamily worker_ejections;  // by worker
  Counter lost_choices;
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_EXCHANGE_METRICS_H_
