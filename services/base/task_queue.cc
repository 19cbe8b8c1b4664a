#include "services/base/task_queue.h"

#include <utility>

namespace gshard {

TaskQueue::TaskQueue() : thread_([this] { Run(); }) {}

void TaskQueue::Post(Task task) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  changed_.NotifyOne();
}

void TaskQueue::PostAfter(absl::Duration delay, Task task) {
  if (delay <= absl::ZeroDuration()) return Post(std::move(task));
  MutexLock lock(mutex_);
  if (stopping_) return;
  later_.emplace(Clock::now() + absl::ToChronoNanoseconds(delay),
                 std::move(task));
  changed_.NotifyOne();
}

void TaskQueue::Stop() {
  std::deque<Task> dropped;
  std::multimap<Clock::time_point, Task> dropped_later;
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
    dropped_later.swap(later_);
    thread.swap(thread_);
    changed_.NotifyOne();
  }
  if (thread.joinable()) thread.join();
}

void TaskQueue::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    while (!later_.empty() && later_.begin()->first <= Clock::now()) {
      tasks_.push_back(std::move(later_.begin()->second));
      later_.erase(later_.begin());
    }
    if (!tasks_.empty()) {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.Unlock();
      task();
      task = nullptr;  // destroys captures outside the lock
      lock.Lock();
    } else if (later_.empty()) {
      changed_.Wait(lock);
    } else {
      changed_.WaitUntil(lock, later_.begin()->first);
    }
  }
}

}  // namespace gshard
