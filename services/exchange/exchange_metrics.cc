#include "services/exchange/exchange_metrics.h"

namespace gshard {

ExchangeMetrics::ExchangeMetrics(Metrics& metrics)
    : lost_choices(metrics.AddCounter(
          "gshard_expert_tokens_lost_total",
          "Choices of tokens for which no worker was left.")),
      workers(std::make_shared<WorkerCounts>(metrics)) {
  const CounterFamily bytes = metrics.AddCounterFamily(
      "gshard_exchange_bytes_total",
      "Tensor bytes exchanged with expert workers.", {"direction"});
  sent_bytes = bytes.With({"sent"});
  received_bytes = bytes.With({"received"});
}

}  // namespace gshard
