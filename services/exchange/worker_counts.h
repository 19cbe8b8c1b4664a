// WorkerCounts: counters of calls by the worker that they went to.
//
// Workers come and go, under names of their own in most systems. The series of
// one are there while somebody may call it, and an hour longer, in which they
// are scraped, and go on if it comes back.

#ifndef SERVICES_EXCHANGE_WORKER_COUNTS_H_
#define SERVICES_EXCHANGE_WORKER_COUNTS_H_

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "services/base/mutex.h"
#include "services/metrics/metrics.h"

namespace gshard {

// Thread-safe. Owned by shared pointers. A default-constructed object ignores
// everything.
class WorkerCounts : public std::enable_shared_from_this<WorkerCounts> {
 public:
  WorkerCounts() = default;
  // Series of workers that are gone end `memory` later, when the next ones
  // come. `metrics` must outlive this object.
  explicit WorkerCounts(Metrics& metrics,
                        std::chrono::seconds memory = std::chrono::hours(1));

  // Shows the series of these workers, with 0 at first, while the result lives.
  std::shared_ptr<void> Show(std::set<std::string> workers);

  // Count for a worker that is shown; others are ignored.
  void CountRetry(const std::string& worker) { Count(retries_, worker); }
  void CountHedge(const std::string& worker) { Count(hedges_, worker); }
  void CountEjection(const std::string& worker) { Count(ejections_, worker); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Worker {
    int users = 0;
    Clock::time_point gone = {};  // without users: since when
  };

  void Count(const CounterFamily& family, const std::string& worker);
  void Hide(const std::set<std::string>& workers);

  const std::chrono::seconds memory_{0};
  const CounterFamily retries_ = {};
  const CounterFamily hedges_ = {};
  const CounterFamily ejections_ = {};
  Mutex mutex_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_WORKER_COUNTS_H_
