// Cancellation: a flag that is set once and wakes threads blocked on something
// else.

#ifndef ROUTER_MODELS_CANCELLATION_H_
#define ROUTER_MODELS_CANCELLATION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "services/base/mutex.h"

namespace gshard {

// Thread-safe.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Sets the flag and runs the callbacks.
  void Cancel() {
    MutexLock lock(mutex_);
    if (cancelled_.exchange(true)) return;
    for (const auto& [id, callback] : callbacks_) callback();
  }

  bool cancelled() const { return cancelled_; }

  // Runs `callback` when the flag is set, or at once if it is. The callback
  // must not call this object, and is not running any more once Remove() of the
  // result has returned.
  uint64_t OnCancel(std::function<void()> callback) {
    MutexLock lock(mutex_);
    if (cancelled_) callback();
    callbacks_[++last_id_] = std::move(callback);
    return last_id_;
  }
  void Remove(uint64_t id) {
    MutexLock lock(mutex_);
    callbacks_.erase(id);
  }

 private:
  std::atomic<bool> cancelled_ = false;
  Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // ROUTER_MODELS_CANCELLATION_H_
