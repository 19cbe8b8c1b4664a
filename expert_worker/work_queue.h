// WorkQueue: the accepted calls of one kind, in order of arrival, and the
// threads that run them. Bounded in calls and in bytes: the newest are refused.
//
// A worker has a queue for translations and one for training jobs. Neither
// takes capacity from the other, and no translation waits for a job's segment,
// which may take a second: it gets a thread at once, and the job's threads,
// which have a higher nice value, yield to it
// (services/base/thread_priority.h). So the kernel schedules the CPU, and none
// of it is left unused.

#ifndef EXPERT_WORKER_WORK_QUEUE_H_
#define EXPERT_WORKER_WORK_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "services/base/mutex.h"

namespace gshard {

struct WorkQueueOptions {
  // Number of concurrent calls; each kernel takes one thread. At least 1.
  int threads = 1;

  // Nice value of the threads.
  int niceness = 0;

  // Limits of the queue.
  size_t max_calls = 1024;
  size_t max_bytes = size_t{1} << 30;

  // The clock for deadlines.
  std::function<std::chrono::steady_clock::time_point()> now =
      std::chrono::steady_clock::now;
};

// The error of calls after Finish().
absl::Status ShuttingDown();

// Thread-safe.
class WorkQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Work {
    // Together unique in the queue.
    uint64_t stream = 0;
    uint64_t call_id = 0;
    size_t bytes = 0;
    TimePoint deadline;
    // Called once. OK: run the call, on one of the queue's threads or in Add().
    // Otherwise the reason for not running it: DeadlineExceeded, Cancelled,
    // Unavailable.
    std::function<void(const absl::Status& status,
                       std::chrono::microseconds waited)>
        run;
  };

  explicit WorkQueue(WorkQueueOptions options);
  // Calls Finish() without grace.
  ~WorkQueue();

  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Runs a `brief` call, one that takes no longer than waking a thread, on the
  // calling thread if nothing waits, a thread is free and the caller has the
  // threads' nice value. Errors, in which case `run` is not called:
  // ResourceExhausted beyond the limits; Unavailable after Finish(). An empty
  // queue always accepts one call.
  absl::Status Add(Work work, bool brief = false);

  // Removes queued calls, one or all of a stream, with CANCELLED.
  void Cancel(uint64_t stream, uint64_t call_id);
  void CancelStream(uint64_t stream);

  // Refuses further calls and returns when the accepted ones are done. Calls
  // still queued after `grace` get UNAVAILABLE.
  void Finish(std::chrono::milliseconds grace);

  int running() const;
  int waiting() const;
  size_t waiting_bytes() const;

  // How long all threads have been running the calls that they run; 0 if one is
  // free.
  std::chrono::microseconds blocked() const;

 private:
  struct Waiting {
    Work work;
    TimePoint arrival;
  };

  void RunThread();
  // Its `begin` is in begins_, until it is over.
  void Run(Waiting next, TimePoint begin);
  void CancelIf(const absl::Status& why,
                const std::function<bool(const Work&)>& matches);
  std::chrono::microseconds Waited(const Waiting& waiting) const;

  const WorkQueueOptions options_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multiset<TimePoint> begins_ ABSL_GUARDED_BY(mutex_);  // of running calls
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_WORK_QUEUE_H_
