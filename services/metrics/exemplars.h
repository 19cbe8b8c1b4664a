// Exemplars: for each bucket of a histogram, the last observation with a
// recorded trace, so that one can find a trace with a given latency. For the
// .cc files of this room only.

#ifndef SERVICES_METRICS_EXEMPLARS_H_
#define SERVICES_METRICS_EXEMPLARS_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/base/mutex.h"

namespace gshard {

struct Exemplar {
  std::string trace_id = {};  // empty: no exemplar
  double value = 0;
  absl::Time time = {};
};

// Thread-safe. Takes memory for the buckets only after the first Add().
class Exemplars {
 public:
  // `bounds` are upper bounds, ascending; the last bucket has none.
  explicit Exemplars(std::vector<double> bounds) : bounds_(std::move(bounds)) {}

  void Add(double value, absl::string_view trace_id, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // By bucket; empty if there are no exemplars.
  std::vector<Exemplar> Last() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::vector<double> bounds_;
  mutable Mutex mutex_;
  std::vector<Exemplar> last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_METRICS_EXEMPLARS_H_
