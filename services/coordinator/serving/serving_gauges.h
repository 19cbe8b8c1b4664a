// ServingGauges: metrics of served models and the replicas that they miss.

#ifndef SERVICES_COORDINATOR_SERVING_SERVING_GAUGES_H_
#define SERVICES_COORDINATOR_SERVING_SERVING_GAUGES_H_

#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/metrics/metrics.h"

namespace gshard {

// Thread-safe; cheap to copy. Valid as long as the Metrics that it was made of;
// a default-constructed one ignores what it is told.
class ServingGauges {
 public:
  ServingGauges() = default;
  explicit ServingGauges(Metrics& metrics);

  // From now on these are the served models, by ServedModels::Describe(). Those
  // that are being loaded don't count: nobody is served by them yet.
  void Set(const std::vector<v1::SessionInfo>& sessions) const;

 private:
  Gauge models_;
  Gauge experts_unavailable_;
  Gauge experts_below_replicas_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SERVING_GAUGES_H_
