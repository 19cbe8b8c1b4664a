// What an expert worker measures.

#ifndef EXPERT_WORKER_WORKER_METRICS_H_
#define EXPERT_WORKER_WORKER_METRICS_H_

#include "services/metrics/metrics.h"

namespace gshard {

// Default-constructed: ignores everything.
struct WorkerMetrics {
  WorkerMetrics() = default;
  explicit WorkerMetrics(Metrics& metrics)
      : calls(metrics.AddCounterFamily("gshard_expert_calls_total",
                                       "Segment calls by outcome.", {"code"})),
        rows(metrics.AddCounter("gshard_expert_rows_total",
                                "Rows that segment calls brought.")),
        step(metrics.AddGauge("gshard_worker_step",
                              "Last training step that was committed.")) {
    const HistogramFamily durations = metrics.AddHistogramFamily(
        "gshard_expert_call_duration_seconds",
        "Time of segment calls: waiting in the queue, and running.", {"stage"});
    queue_seconds = durations.With({"queue"});
    run_seconds = durations.With({"run"});
    const CounterFamily bytes = metrics.AddCounterFamily(
        "gshard_exchange_bytes_total", "Tensor bytes exchanged with routers.",
        {"direction"});
    received_bytes = bytes.With({"received"});
    sent_bytes = bytes.With({"sent"});
  }

  Histogram queue_seconds;
  Histogram run_seconds;
  CounterFamily calls;
  Counter rows;
  Counter received_bytes;
  Counter sent_bytes;
  Gauge step;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_WORKER_METRICS_H_
