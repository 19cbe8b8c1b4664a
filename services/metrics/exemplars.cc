#include "services/metrics/exemplars.h"

#include <algorithm>

namespace gshard {

void Exemplars::Add(double value, absl::string_view trace_id, absl::Time now) {
  // A bucket includes its upper bound.
  const size_t bucket =
      std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  MutexLock lock(mutex_);
  last_.resize(bounds_.size() + 1);
  last_[bucket] = {std::string(trace_id), value, now};
}

std::vector<Exemplar> Exemplars::Last() const {
  MutexLock lock(mutex_);
  return last_;
}

}  // namespace gshard
