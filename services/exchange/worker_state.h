// WorkerState: a router's view of one expert worker, shared by all models that
// it calls there.

#ifndef SERVICES_EXCHANGE_WORKER_STATE_H_
#define SERVICES_EXCHANGE_WORKER_STATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "services/base/mutex.h"
#include "services/cluster/worker_health.h"

namespace gshard {

// Thread-safe.
class WorkerState {
 public:
  using Clock = std::chrono::steady_clock;

  // Rows that were sent and not answered yet.
  int64_t outstanding_rows() const { return outstanding_rows_; }
  void AddOutstanding(int64_t rows) { outstanding_rows_ += rows; }

  // Calls `visit` with the WorkerHealth, under the lock.
  template <typename Visit>
  auto Health(Visit visit) {
    MutexLock lock(mutex_);
    return visit(health_);
  }

  WorkerHealth::State health() const {
    MutexLock lock(mutex_);
    return health_.state();
  }

 private:
  std::atomic<int64_t> outstanding_rows_ = 0;
  mutable Mutex mutex_;
  WorkerHealth health_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_EXCHANGE_WORKER_STATE_H_
