// TaskQueue: a thread that runs tasks one at a time, in the order of posting.
// State that only its tasks touch needs no lock.

#ifndef SERVICES_BASE_TASK_QUEUE_H_
#define SERVICES_BASE_TASK_QUEUE_H_

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "absl/time/time.h"
#include "services/base/mutex.h"

namespace gshard {

// Thread-safe.
class TaskQueue {
 public:
  using Task = std::function<void()>;

  TaskQueue();
  ~TaskQueue() { Stop(); }

  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Dropped after Stop().
  void Post(Task task);

  // Runs the task no earlier than `delay` from now.
  void PostAfter(absl::Duration delay, Task task);

  // Waits for the running task and drops all others. Not to be called from a
  // task.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;

  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::multimap<Clock::time_point, Task> later_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_BASE_TASK_QUEUE_H_
