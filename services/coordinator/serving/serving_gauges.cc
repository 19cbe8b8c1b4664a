#include "services/coordinator/serving/serving_gauges.h"

#include <cstdint>

namespace gshard {

ServingGauges::ServingGauges(Metrics& metrics)
    : models_(metrics.AddGauge(
          "gshard_served_models",
          "Versions of models that are served, without those that load.")),
      experts_unavailable_(metrics.AddGauge(
          "gshard_served_experts_unavailable",
          "Experts of served models that no worker holds: translations are "
          "degraded.")),
      experts_below_replicas_(metrics.AddGauge(
          "gshard_served_experts_below_replicas",
          "Experts of served models with fewer replicas than asked for.")) {}

void ServingGauges::Set(const std::vector<v1::SessionInfo>& sessions) const {
  int64_t models = 0, unavailable = 0, below_replicas = 0;
  for (const v1::SessionInfo& session : sessions) {
    if (session.state() == v1::SessionInfo::LOADING) continue;
    ++models;
    unavailable += session.experts_unavailable();
    below_replicas += session.experts_below_replicas();
  }
  models_.Set(static_cast<double>(models));
  experts_unavailable_.Set(static_cast<double>(unavailable));
  experts_below_replicas_.Set(static_cast<double>(below_replicas));
}

}  // namespace gshard
