#include "services/coordinator/training/job_mailbox.h"

#include "absl/time/time.h"

namespace gshard {

void JobMailbox::Post(std::function<void()> event) {
  MutexLock lock(mutex_);
  if (closed_) return;
  events_.push_back(std::move(event));
  came_.NotifyOne();
}

bool JobMailbox::RunOne() {
  std::function<void()> event;
  {
    MutexLock lock(mutex_);
    if (events_.empty()) return false;
    event = std::move(events_.front());
    events_.pop_front();
  }
  event();
  return true;
}

void JobMailbox::Next(MonotonicTime until) {
  {
    MutexLock lock(mutex_);
    const auto has_come = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !events_.empty();
    };
    if (until == MonotonicTime::InfiniteFuture()) {
      came_.Wait(lock, has_come);
    } else if (!came_.WaitFor(lock, absl::ToChronoNanoseconds(until - clock_()),
                              has_come)) {
      return;
    }
  }
  RunOne();
}

void JobMailbox::Close() {
  std::deque<std::function<void()>> dropped;  // destroyed outside the lock
  MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(events_);
}

}  // namespace gshard
