// ServingGauges: metrics of served models, and of replicas that are missing or
// share a failure domain.

#ifndef SERVICES_COORDINATOR_SERVING_SERVING_GAUGES_H_
#define SERVICES_COORDINATOR_SERVING_SERVING_GAUGES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/metrics/metrics.h"

namespace gshard {

// Valid as long as the Metrics that it was created from; a default-constructed
// one does nothing. Not thread-safe.
class ServingGauges {
 public:
  ServingGauges() = default;
  explicit ServingGauges(Metrics& metrics);

  // Sets the served models, from ServedModels::Describe(). Loading ones don't
  // count: they serve nobody yet.
  void Set(const std::vector<v1::SessionInfo>& sessions) const;

  // Sets the present workers, and whether each may be lost. The series of those
  // that are gone end.
  void SetMayLeave(const std::map<std::string, bool>& workers);

 private:
  Gauge models_;
  Gauge experts_unavailable_;
  Gauge experts_below_replicas_;
  Gauge experts_sharing_domain_;
  GaugeFamily may_leave_;
  std::set<std::string> told_;  // workers of may_leave_
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SERVING_GAUGES_H_
