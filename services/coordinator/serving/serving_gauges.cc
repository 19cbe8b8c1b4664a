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
          "Experts of served models with fewer replicas than asked for.")),
      experts_sharing_domain_(metrics.AddGauge(
          "gshard_served_experts_sharing_domain",
          "Experts of served models with replicas that share a failure "
          "domain.")),
      may_leave_(metrics.AddGaugeFamily(
          "gshard_worker_may_leave",
          "1 if the worker may be stopped or lost: every expert of the served "
          "models has a replica on another one, which stays.",
          {"worker"})) {}

void ServingGauges::Set(const std::vector<v1::SessionInfo>& sessions) const {
  int64_t models = 0, unavailable = 0, below_replicas = 0, sharing_domain = 0;
  for (const v1::SessionInfo& session : sessions) {
    if (session.state() == v1::SessionInfo::LOADING) continue;
    ++models;
    unavailable += session.experts_unavailable();
    below_replicas += session.experts_below_replicas();
    sharing_domain += session.experts_sharing_domain();
  }
  models_.Set(static_cast<double>(models));
  experts_unavailable_.Set(static_cast<double>(unavailable));
  experts_below_replicas_.Set(static_cast<double>(below_replicas));
  experts_sharing_domain_.Set(static_cast<double>(sharing_domain));
}

void ServingGauges::SetMayLeave(const std::map<std::string, bool>& workers) {
  std::erase_if(told_, [&](const std::string& worker) {
    if (workers.contains(worker)) return false;
    may_leave_.Remove({worker});
    return true;
  });
  for (const auto& [worker, may_leave] : workers) {
    may_leave_.With({worker}).Set(may_leave ? 1 : 0);
    told_.insert(worker);
  }
}

}  // namespace gshard
