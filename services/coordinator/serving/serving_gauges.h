// ServingGauges: metrics of served models, and of their replicas that are
// missing or not apart.

#ifndef SERVICES_COORDINATOR_SERVING_SERVING_GAUGES_H_
#define SERVICES_COORDINATOR_SERVING_SERVING_GAUGES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/metrics/metrics.h"

namespace gshard {

// Valid as long as the Metrics that it was made of; a default-constructed one
// ignores what it is told. Not thread-safe.
class ServingGauges {
 public:
  ServingGauges() = default;
  explicit ServingGauges(Metrics& metrics);

  // From now on these are the served models, by ServedModels::Describe(). Those
  // that are being loaded don't count: nobody is served by them yet.
  void Set(const std::vector<v1::SessionInfo>& sessions) const;

  // From now on these workers are there, and may be lost, or not. Of one that
  // is not there any more it is said that it may not.
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
