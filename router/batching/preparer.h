// Preparer: the threads that tokenize requests, and the queue of requests.
// gRPC's threads must not do it, since they also serve health checks and
// heartbeats. The threads have a higher nice value (thread_priority.h).
//
// A request is prepared one sentence at a time. Turns are fair by bytes, as in
// the batch by work (fair_queue.h): after each sentence a caller with much text
// yields to one with little. The total is bounded in bytes, of which a caller
// with requests here may have twice what it leaves free, so that there is
// always room for another caller.

#ifndef ROUTER_BATCHING_PREPARER_H_
#define ROUTER_BATCHING_PREPARER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/admission/fair_queue.h"
#include "router/metrics/router_metrics.h"
#include "services/base/mutex.h"
#include "services/rpc/wire/trace_context.h"

namespace gshard {

struct PreparerLimits {
  int64_t threads = 1;

  // Maximum bytes of encoded requests that wait or are being prepared. One
  // request may always have all of it.
  int64_t max_bytes = int64_t{16} << 20;
};

// Thread-safe.
class Preparer {
 public:
  struct Task {
    std::string caller;  // for fair turns and shares, as in FairQueue
    uint64_t flow = 0;
    int64_t bytes = 1;  // size of the request, at least 1
    std::chrono::steady_clock::time_point deadline;
    TraceContext trace = {};  // for logs; may be empty

    // Prepares the next sentence; returns the bytes of the one after it, 0 if
    // there is none. Called by one thread at a time.
    std::function<int64_t()> prepare_next;
    // Called once, on any thread but not inside Add(), if sentences remain
    // unprepared: DeadlineExceeded, Cancelled (inside Cancel() unless a
    // sentence is being prepared), Unavailable.
    std::function<void(const absl::Status&)> give_up;
  };

  explicit Preparer(const PreparerLimits& limits, RouterMetrics metrics = {});
  // Calls Finish() without waiting.
  ~Preparer();

  Preparer(const Preparer&) = delete;
  Preparer& operator=(const Preparer&) = delete;

  // Returns the task's id. Errors, in which case no callback is called:
  // ResourceExhausted, with a RetryDelay, if there is no room for it;
  // Unavailable after Finish().
  absl::StatusOr<uint64_t> Add(Task task);

  // Gives up a task, unless it has ended: at once, or after the sentence being
  // prepared.
  void Cancel(uint64_t id);

  // Refuses further tasks and returns when all have ended or `grace` has
  // passed; tasks still queued then are given up.
  void Finish(std::chrono::milliseconds grace);

 private:
  struct Entry {
    uint64_t id = 0;
    Task task;
    bool running = false;  // or being given up
    absl::Status end;      // an error: give up after the running part
  };
  using Entries = std::vector<std::shared_ptr<Entry>>;

  void RunThread();
  void Wait(const Entry& entry, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the task from the queue, for GiveUp(); or marks it, and returns
  // false, while it runs.
  bool End(Entry& entry, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notifies the task, then deletes it: Finish() waits for both.
  void GiveUp(const Entry& entry, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entries TakeExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PreparerLimits limits_;
  const RouterMetrics metrics_;

  Mutex mutex_;
  CondVar changed_;  // queue_, stopping_
  CondVar over_;     // tasks have ended
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<std::chrono::steady_clock::time_point, uint64_t>>
      deadlines_ ABSL_GUARDED_BY(mutex_);    // of entries_ without `end`
  FairQueue queue_ ABSL_GUARDED_BY(mutex_);  // of tasks that are not running
  // Bytes; none is 0.
  std::map<std::string, int64_t> callers_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace gshard

#endif  // ROUTER_BATCHING_PREPARER_H_
