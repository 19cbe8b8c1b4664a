#include "router/metrics/router_metrics.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

// The usual outcomes, which are shown from 0 on.
constexpr absl::StatusCode kCodes[] = {absl::StatusCode::kOk,
                                       absl::StatusCode::kCancelled,
                                       absl::StatusCode::kInvalidArgument,
                                       absl::StatusCode::kDeadlineExceeded,
                                       absl::StatusCode::kNotFound,
                                       absl::StatusCode::kResourceExhausted,
                                       absl::StatusCode::kUnavailable,
                                       absl::StatusCode::kInternal};

// "OK", "INVALID_ARGUMENT".
std::string CodeName(absl::StatusCode code) {
  return absl::StatusCodeToString(code);
}

}  // namespace

RouterMetrics::RouterMetrics(Metrics& metrics, bool per_expert)
    : requests(
          metrics.AddCounterFamily("gshard_translate_requests_total",
                                   "Translate calls and streams' requests by "
                                   "outcome.",
                                   {"model", "code"})),
      call_seconds(
          metrics.AddHistogramFamily("gshard_translate_duration_seconds",
                                     "Time of Translate calls, from when the "
                                     "request has been read to the answer.",
                                     {"model"})),
      stream_request_seconds(metrics.AddHistogramFamily(
          "gshard_stream_request_duration_seconds",
          "Time of requests of TranslateStreams, from arrival to answer; their "
          "clients keep many in flight, which wait for each other.",
          {"model"})),
      queue_seconds(
          metrics.AddHistogram("gshard_queue_duration_seconds",
                               "Time that sentences wait to join a batch.")),
      requests_in_flight(
          metrics.AddGauge("gshard_requests_in_flight",
                           "Translate calls and streams' requests being "
                           "served.")),
      preparing_bytes(metrics.AddGauge(
          "gshard_preparing_bytes",
          "Encoded requests that are turned into tokens, or wait for it.")),
      requests_queued(metrics.AddGauge("gshard_requests_queued",
                                       "Sentences that wait for a batch.")),
      queued_tokens(metrics.AddGauge(
          "gshard_queued_tokens",
          "Source tokens that wait, once for each hypothesis.")),
      batch_sentences(metrics.AddGauge("gshard_batch_sentences",
                                       "Sentences in running batches.")),
      batch_positions(metrics.AddGauge(
          "gshard_batch_positions",
          "Positions of the cache that these sentences may take.")),
      open_streams(metrics.AddGauge("gshard_open_streams",
                                    "TranslateStream calls being served.")),
      estimated_wait(metrics.AddGauge(
          "gshard_estimated_wait_seconds",
          "Time until all sentences that wait and run are translated, as "
          "admission estimates it.")),
      highest_rounds(metrics.AddGauge(
          "gshard_caller_rounds_ratio",
          "Rounds of a batch for each source token of the caller whose "
          "translations are longest, in those of the usual caller.")),
      highest_row_cost(
          metrics.AddGauge("gshard_caller_row_cost_ratio",
                           "What a row of the caller whose rows go to the "
                           "busiest experts costs, "
                           "in rows of all that are beside it; 1 is even.")),
      admissions(metrics.AddCounterFamily(
          "gshard_admissions_total",
          "Requests and messages of streams by what admission decided.",
          {"verdict"})),
      admitted(metrics.AddCounterFamily(
          "gshard_admitted_requests_total",
          "Admitted requests and messages of streams by outcome.", {"code"})),
      batch_rows(metrics.AddHistogram("gshard_batch_rows",
                                      "Hypotheses decoded together, by step.",
                                      SizeBuckets())),
      decoded_tokens(metrics.AddCounterFamily(
          "gshard_decoded_tokens_total", "Tokens of all hypotheses decoded.",
          {"model"})),
      expert_tokens(metrics.AddCounterFamily(
          "gshard_expert_tokens_total",
          "Choices of tokens that got a slot of an expert, also if no worker "
          "was left for it.",
          {"layer"})),
      dropped_tokens(metrics.AddCounterFamily(
          "gshard_expert_tokens_dropped_total",
          "Choices of tokens that got no slot.", {"layer", "choice"})),
      load_imbalance(metrics.AddGaugeFamily(
          "gshard_expert_load_imbalance_ratio",
          "Tokens of the busiest expert over the mean, in the last batch.",
          {"layer"})),
      microbatch_seconds(metrics.AddHistogram(
          "gshard_microbatch_duration_seconds",
          "Time of training microbatches, parameters and gradients "
          "included.")),
      exchange(metrics),
      per_expert(per_expert) {
  if (per_expert) {
    tokens_of_expert = metrics.AddCounterFamily(
        "gshard_expert_rows_total",
        "Choices of tokens that got a slot of this expert, also if no worker "
        "was left for it.",
        {"model", "layer", "expert", "experts"}, kMaxExpertSeries);
  }
  const HistogramFamily stages = metrics.AddHistogramFamily(
      "gshard_stage_duration_seconds", "Time of the stages of translation.",
      {"stage"});
  tokenize_seconds = stages.With({"tokenize"});
  encode_seconds = stages.With({"encode"});
  decode_seconds = stages.With({"decode"});
  detokenize_seconds = stages.With({"detokenize"});
  // Of requests that are refused before their model is known.
  DeclareModel("");
  for (const Verdict verdict : kVerdicts) {
    admissions.With({VerdictName(verdict)});
  }
  for (const absl::StatusCode code : kCodes) admitted.With({CodeName(code)});
}

void RouterMetrics::DeclareModel(const std::string& model) const {
  for (const absl::StatusCode code : kCodes) {
    requests.With({model, CodeName(code)});
  }
  call_seconds.With({model});
  stream_request_seconds.With({model});
  decoded_tokens.With({model});
}

LayerMetrics RouterMetrics::OfLayer(const std::string& model,
                                    const std::string& layer,
                                    int64_t experts) const {
  LayerMetrics series;
  series.tokens_ = expert_tokens.With({layer});
  series.dropped_first_ = dropped_tokens.With({layer, "first"});
  series.dropped_second_ = dropped_tokens.With({layer, "second"});
  series.imbalance_ = load_imbalance.With({layer});
  if (!per_expert) return series;
  for (int64_t e = 0; e < experts; ++e) {
    series.tokens_of_expert_.push_back(tokens_of_expert.With(
        {model, layer, absl::StrCat(e), absl::StrCat(experts)}));
  }
  return series;
}

void LayerMetrics::Count(const std::vector<int64_t>& expert_rows,
                         int64_t overflow_first,
                         int64_t overflow_second) const {
  const auto add = [](const Counter& counter, int64_t by) {
    if (by > 0) counter.Increment(static_cast<double>(by));
  };
  const int64_t rows =
      std::accumulate(expert_rows.begin(), expert_rows.end(), int64_t{0});
  add(tokens_, rows);
  add(dropped_first_, overflow_first);
  add(dropped_second_, overflow_second);
  const size_t counted = std::min(expert_rows.size(), tokens_of_expert_.size());
  for (size_t e = 0; e < counted; ++e) {
    add(tokens_of_expert_[e], expert_rows[e]);
  }
  if (rows == 0) return;
  const int64_t most =
      *std::max_element(expert_rows.begin(), expert_rows.end());
  imbalance_.Set(static_cast<double>(most) *
                 static_cast<double>(expert_rows.size()) /
                 static_cast<double>(rows));
}

void RouterMetrics::CountAdmission(Verdict verdict) const {
  admissions.With({VerdictName(verdict)}).Increment();
}

void RouterMetrics::CountAdmitted(absl::StatusCode code) const {
  admitted.With({CodeName(code)}).Increment();
}

void RouterMetrics::CountCall(const std::string& model, absl::StatusCode code,
                              double seconds,
                              absl::string_view trace_id) const {
  requests.With({model, CodeName(code)}).Increment();
  call_seconds.With({model}).Observe(seconds, trace_id);
}

void RouterMetrics::CountStreamRequest(const std::string& model,
                                       absl::StatusCode code, double seconds,
                                       absl::string_view trace_id) const {
  requests.With({model, CodeName(code)}).Increment();
  stream_request_seconds.With({model}).Observe(seconds, trace_id);
}

}  // namespace gshard
