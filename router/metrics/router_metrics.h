// The metrics of a router, for training and serving.

#ifndef ROUTER_METRICS_ROUTER_METRICS_H_
#define ROUTER_METRICS_ROUTER_METRICS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/admission/admission.h"
#include "services/exchange/exchange_metrics.h"
#include "services/metrics/metrics.h"

namespace gshard {

// Default-constructed: ignores everything. Cheap to copy, thread-safe.
struct RouterMetrics {
  RouterMetrics() = default;
  // `per_expert` adds a series for each expert of each layer.
  explicit RouterMetrics(Metrics& metrics, bool per_expert = false);

  // Initializes the series of these MoE layers to 0.
  void DeclareLayers(const std::vector<std::string>& layers) const;

  // Counts the work of an MoE layer; `expert_rows` are rows kept by each
  // expert.
  void CountLayer(const std::string& layer,
                  const std::vector<int64_t>& expert_rows,
                  int64_t overflow_first, int64_t overflow_second) const;

  // Counts the end of a Translate call, or of a request of a TranslateStream;
  // `trace_id` as in Histogram.
  void CountRequest(absl::StatusCode code, double seconds,
                    absl::string_view trace_id) const;

  // Counts a decision of Admission.
  void CountAdmission(Verdict verdict) const;

  CounterFamily requests;      // by code
  Histogram request_seconds;   // of these calls and requests
  Histogram queue_seconds;     // of sentences, until they join a batch
  Gauge requests_in_flight;    // these calls and requests
  Gauge preparing_bytes;       // of requests that become tokens
  Gauge requests_queued;       // sentences that wait
  Gauge queued_tokens;         // that wait, once for each hypothesis
  Gauge batch_sentences;       // that are in a batch
  Gauge batch_positions;       // of the cache, that these may take
  Gauge open_streams;          // TranslateStream calls
  Gauge estimated_wait;        // seconds until all accepted work is done
  Gauge highest_rounds;        // of callers: CallerCosts
  Gauge highest_row_cost;      // likewise
  CounterFamily admissions;    // requests, by verdict
  Histogram batch_rows;        // hypotheses of a decoding step
  Histogram tokenize_seconds;  // of a call
  Histogram encode_seconds;    // of those who join together
  Histogram decode_seconds;    // of a step
  Histogram detokenize_seconds;
  Counter decoded_tokens;
  CounterFamily expert_tokens;     // by layer
  CounterFamily dropped_tokens;    // by layer, choice
  CounterFamily tokens_of_expert;  // by layer, expert; may be unset
  GaugeFamily load_imbalance;      // by layer
  Histogram microbatch_seconds;
  ExchangeMetrics exchange;
  bool per_expert = false;
};

}  // namespace gshard

#endif  // ROUTER_METRICS_ROUTER_METRICS_H_
