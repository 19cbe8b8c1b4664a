// ModelLoads: rows per second of served models' experts, from routers'
// heartbeats. Time is passed in.

#ifndef SERVICES_COORDINATOR_SERVING_MODEL_LOAD_H_
#define SERVICES_COORDINATOR_SERVING_MODEL_LOAD_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/base/monotonic_time.h"

namespace gshard {

class ModelLoads {
 public:
  // Rates are exponential averages with half-life `half_life`.
  explicit ModelLoads(absl::Duration half_life = absl::Minutes(1))
      : half_life_(half_life) {}

  // Takes the members' latest heartbeats. Counters that decreased, are negative
  // or changed in length start anew.
  void Observe(const std::vector<v1::Member>& members, MonotonicTime now);

  // Rows per second of each expert, over all routers; empty if unknown yet, or
  // less than one row per expert.
  std::vector<double> Of(const std::string& session) const;

 private:
  using Counts = std::vector<int64_t>;
  struct Rate {
    std::vector<double> rows_per_second;
    double weight = 0.0;  // past observations, up to 1
  };

  const absl::Duration half_life_;
  // By router and session.
  std::map<std::pair<std::string, std::string>, Counts> counts_;
  std::map<std::string, Rate> rates_;
  MonotonicTime last_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_MODEL_LOAD_H_
