// The metrics of an expert worker.

#ifndef EXPERT_WORKER_WORKER_METRICS_H_
#define EXPERT_WORKER_WORKER_METRICS_H_

#include "services/metrics/metrics.h"

namespace gshard {

// Default-constructed: ignores everything.
struct WorkerMetrics {
  // Durations of calls of one kind.
  struct CallSeconds {
    Histogram queue;
    Histogram run;
  };

  WorkerMetrics() = default;
  explicit WorkerMetrics(Metrics& metrics)
      : calls(metrics.AddCounterFamily("gshard_expert_calls_total",
                                       "Segment calls by outcome.", {"code"})),
        rows(metrics.AddCounter("gshard_expert_rows_total",
                                "Rows that segment calls brought.")),
        step(metrics.AddGauge("gshard_worker_step",
                              "Last training step that was committed.")) {
    ok_calls = calls.With({"OK"});
    const HistogramFamily durations = metrics.AddHistogramFamily(
        "gshard_expert_call_duration_seconds",
        "Time of segment calls, of translations and of training: waiting in "
        "the queue, and running.",
        {"stage", "kind"});
    for (const bool training : {false, true}) {
      const char* const kind = training ? "training" : "serving";
      call_seconds[training] = {.queue = durations.With({"queue", kind}),
                                .run = durations.With({"run", kind})};
    }
    const CounterFamily bytes = metrics.AddCounterFamily(
        "gshard_exchange_bytes_total", "Tensor bytes exchanged with routers.",
        {"direction"});
    received_bytes = bytes.With({"received"});
    sent_bytes = bytes.With({"sent"});
  }

  CallSeconds call_seconds[2];  // translations; training
  CounterFamily calls;
  Counter ok_calls;  // of these
  Counter rows;
  Counter received_bytes;
  Counter sent_bytes;
  Gauge step;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_WORKER_METRICS_H_
