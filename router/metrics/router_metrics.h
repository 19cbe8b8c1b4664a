// The metrics of a router, for training and serving.

#ifndef ROUTER_METRICS_ROUTER_METRICS_H_
#define ROUTER_METRICS_ROUTER_METRICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/admission/admission.h"
#include "services/exchange/exchange_metrics.h"
#include "services/metrics/metrics.h"

namespace gshard {

// The series of one MoE layer. Default-constructed: ignores everything.
// Thread-safe.
class LayerMetrics {
 public:
  // Counts work of the layer; `expert_rows` are the rows that the gate kept for
  // each expert.
  void Count(const std::vector<int64_t>& expert_rows, int64_t overflow_first,
             int64_t overflow_second) const;

 private:
  friend struct RouterMetrics;

  Counter tokens_;
  Counter dropped_first_;
  Counter dropped_second_;
  Gauge imbalance_;
  std::vector<Counter> tokens_of_expert_;  // empty without per_expert
};

// Default-constructed: ignores everything. Cheap to copy, thread-safe.
struct RouterMetrics {
  RouterMetrics() = default;
  // `per_expert` adds a series for each expert of each layer.
  explicit RouterMetrics(Metrics& metrics, bool per_expert = false);

  // The series of an MoE layer of a served model, without its version, or of a
  // training job, as ""; from 0 on. To be kept: each is looked up here, under a
  // lock.
  LayerMetrics OfLayer(const std::string& model, const std::string& layer,
                       int64_t experts) const;

  // Initializes the series of a served model, without its version, to 0.
  void DeclareModel(const std::string& model) const;

  // Counts the end of a Translate call, `model` as in IncomingRequest and
  // `trace_id` as in Histogram.
  void CountCall(const std::string& model, absl::StatusCode code,
                 double seconds, absl::string_view trace_id) const;

  // Likewise of a request of a TranslateStream. Its time is apart: it includes
  // that of the requests which its client has sent before.
  void CountStreamRequest(const std::string& model, absl::StatusCode code,
                          double seconds, absl::string_view trace_id) const;

  // Counts the end of a call or request that was admitted, which is counted
  // above as well.
  void CountAdmitted(absl::StatusCode code) const;

  // Counts a decision of Admission.
  void CountAdmission(Verdict verdict) const;

  CounterFamily requests;        // calls and streams' requests, by model, code
  HistogramFamily call_seconds;  // duration of these calls, by model
  HistogramFamily stream_request_seconds;  // and of these requests
  Histogram queue_seconds;     // per sentence, until it joins a batch
  Gauge requests_in_flight;    // these calls and requests
  Gauge preparing_bytes;       // bytes of requests being tokenized
  Gauge requests_queued;       // waiting sentences
  Gauge queued_tokens;         // waiting tokens times hypotheses
  Gauge batch_sentences;       // sentences in batches
  Gauge batch_positions;       // cache positions that these may use
  Gauge open_streams;          // TranslateStream calls
  Gauge estimated_wait;        // Admission::EstimatedSeconds()
  Gauge highest_rounds;        // highest of all callers: CallerCosts
  Gauge highest_row_cost;      // likewise
  CounterFamily admissions;    // by verdict
  CounterFamily admitted;      // ended, of those that were admitted; by code
  Histogram batch_rows;        // hypotheses of a decoding step
  Histogram tokenize_seconds;  // per call
  Histogram encode_seconds;    // per joint encoding
  Histogram decode_seconds;    // per step
  Histogram detokenize_seconds;
  CounterFamily decoded_tokens;  // by model
  CounterFamily expert_tokens;   // by layer
  CounterFamily dropped_tokens;  // by layer, choice
  // By model, layer, expert, their number; may be unset.
  CounterFamily tokens_of_expert;
  GaugeFamily load_imbalance;  // by layer
  Histogram microbatch_seconds;
  ExchangeMetrics exchange;
  bool per_expert = false;
};

}  // namespace gshard

#endif  // ROUTER_METRICS_ROUTER_METRICS_H_
