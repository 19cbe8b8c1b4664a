#include "services/exchange/exchange_metrics.h"

namespace gshard {

ExchangeMetrics::ExchangeMetrics(Metrics& metrics)
    : call_retries(metrics.AddCounterFamily(
          "gshard_expert_call_retries_total",
          "Calls made again on another replica since the worker failed.",
          {"worker"})),
      call_hedges(metrics.AddCounterFamily(
          "gshard_expert_call_hedges_total",
          "Calls made twice since the worker kept them waiting.", {"worker"})),
      worker_ejections(metrics.AddCounterFamily(
          "gshard_worker_ejections_total",
          "Times that the worker was avoided, until it answered a ping or, if "
          "it answers nothing else, for a while.",
          {"worker"})),
      lost_choices(metrics.AddCounter(
          "gshard_expert_tokens_lost_total",
          "Choices of tokens for which no worker was left.")) {
  const CounterFamily bytes = metrics.AddCounterFamily(
      "gshard_exchange_bytes_total",
      "Tensor bytes exchanged with expert workers.", {"direction"});
  sent_bytes = bytes.With({"sent"});
  received_bytes = bytes.With({"received"});
}

void ExchangeMetrics::DeclareWorker(const std::string& worker) const {
  for (const CounterFamily* const family :
       {&call_retries, &call_hedges, &worker_ejections}) {
    family->With({worker});
  }
}

}  // namespace gshard
