#include "services/coordinator/training/job_mailbox.h"

#include "absl/time/time.h"

namespace gshard {

void JobMailbox::Post(std::function<void()> event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  events_.push_back(std::move(event));
  came_.notify_one();
}

bool JobMailbox::RunOne() {
  std::function<void()> event;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (events_.empty()) return false;
    event = std::move(events_.front());
    events_.pop_front();
  }
  event();
  return true;
}

void JobMailbox::Next(MonotonicTime until) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto has_come = [this] { return !events_.empty(); };
    if (until == MonotonicTime::InfiniteFuture()) {
      came_.wait(lock, has_come);
    } else if (!came_.wait_for(lock,
                               absl::ToChronoNanoseconds(until - clock_()),
                               has_come)) {
      return;
    }
  }
  RunOne();
}

void JobMailbox::Close() {
  std::deque<std::function<void()>> dropped;  // outside of the lock
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  dropped.swap(events_);
}

}  // namespace gshard
