// ProgressFeed: the latest progress of a job, and its listeners.

#ifndef SERVICES_COORDINATOR_STORE_PROGRESS_FEED_H_
#define SERVICES_COORDINATOR_STORE_PROGRESS_FEED_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/base/mutex.h"

namespace gshard {

// "running", "succeeded", ...
std::string JobStateName(v1::JobState state);
// Whether this is a final state.
bool IsOver(v1::JobState state);

// Thread-safe.
class ProgressFeed {
 public:
  // Called under the feed's lock: must not block, nor call the feed. Null: the
  // process is shutting down.
  using Listener = std::function<void(const v1::JobProgress*)>;

  explicit ProgressFeed(v1::JobProgress first) : latest_(std::move(first)) {}

  // Updates, and notifies all listeners.
  void Publish(const v1::JobProgress& progress);

  // Updates without notifying listeners.
  void Update(const v1::JobProgress& progress);

  // Notifies all listeners that nothing follows.
  void Close();

  v1::JobProgress Latest() const;
  // Whether the latest progress is final.
  bool over() const;

  // The listener gets the latest progress at once. Returns the id for Remove.
  int64_t Listen(Listener listener);
  // The listener is not called any more once this returns.
  void Remove(int64_t id);

 private:
  mutable Mutex mutex_;
  v1::JobProgress latest_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_STORE_PROGRESS_FEED_H_
