#include "expert_worker/work_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/base/retry_delay.h"
#include "services/base/thread_priority.h"

namespace gshard {
namespace {

// Time in which some queued calls complete.
constexpr std::chrono::milliseconds kFullDelay{100};

absl::Status NotBegun() {
  return absl::CancelledError("cancelled before it began");
}

}  // namespace

absl::Status ShuttingDown() {
  return absl::UnavailableError("the worker is shutting down");
}

WorkQueue::WorkQueue(WorkQueueOptions options) : options_(std::move(options)) {
  CHECK(options_.threads >= 1);
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { RunThread(); });
  }
}

WorkQueue::~WorkQueue() {
  Finish(std::chrono::milliseconds(0));
  for (std::thread& thread : threads_) thread.join();
}

absl::Status WorkQueue::Add(Work work, bool brief) {
  const bool nice = brief && ThreadNiceness() >= options_.niceness;
  const TimePoint now = options_.now();
  Waiting next = {std::move(work), now};
  bool here = false;
  {
    MutexLock lock(mutex_);
    if (finishing_) return ShuttingDown();
    const size_t bytes = waiting_bytes_ + next.work.bytes;
    if (!waiting_.empty() &&
        (waiting_.size() >= options_.max_calls || bytes > options_.max_bytes)) {
      return WithRetryDelay(
          absl::ResourceExhaustedError(absl::StrCat(
              "the worker's queue is full: ", waiting_.size(), " calls of ",
              waiting_bytes_, " bytes wait, at most ", options_.max_calls,
              " of ", options_.max_bytes, " bytes may")),
          kFullDelay);
    }
    here = nice && waiting_.empty() && std::ssize(begins_) < options_.threads;
    if (here) {
      begins_.insert(now);
    } else {
      waiting_bytes_ = bytes;
      waiting_.push_back(std::move(next));
    }
  }
  if (here) {
    Run(std::move(next), now);
    RestHelpers();
  } else {
    // Whoever is woken under the lock sleeps again at once, to wait for that.
    changed_.NotifyOne();
  }
  return absl::OkStatus();
}

void WorkQueue::RunThread() {
  BeNice(options_.niceness);
  while (true) {
    Waiting next;
    TimePoint begin;
    {
      MutexLock lock(mutex_);
      if (waiting_.empty()) RestHelpers();
      changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return finishing_ || !waiting_.empty();
      });
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      waiting_bytes_ -= next.work.bytes;
      begin = options_.now();
      begins_.insert(begin);
    }
    Run(std::move(next), begin);
  }
}

void WorkQueue::Run(Waiting next, TimePoint begin) {
  {
    const Waiting now = std::move(next);
    const bool late = options_.now() >= now.work.deadline;
    now.work.run(late ? absl::DeadlineExceededError(
                            "the time went by before the segment began")
                      : absl::OkStatus(),
                 Waited(now));
  }
  MutexLock lock(mutex_);
  begins_.erase(begins_.find(begin));
  if (finishing_) changed_.NotifyAll();
}

void WorkQueue::CancelIf(const absl::Status& why,
                         const std::function<bool(const Work&)>& matches) {
  std::list<Waiting> cancelled;
  {
    MutexLock lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const auto waiting = it++;
      if (!matches(waiting->work)) continue;
      waiting_bytes_ -= waiting->work.bytes;
      cancelled.splice(cancelled.end(), waiting_, waiting);
    }
    if (finishing_) changed_.NotifyAll();
  }
  for (const Waiting& waiting : cancelled) {
    waiting.work.run(why, Waited(waiting));
  }
}

void WorkQueue::Cancel(uint64_t stream, uint64_t call_id) {
  CancelIf(NotBegun(), [=](const Work& work) {
    return work.stream == stream && work.call_id == call_id;
  });
}

void WorkQueue::CancelStream(uint64_t stream) {
  CancelIf(NotBegun(), [=](const Work& work) { return work.stream == stream; });
}

void WorkQueue::Finish(std::chrono::milliseconds grace) {
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiting_.empty() && begins_.empty();
  };
  MutexLock lock(mutex_);
  finishing_ = true;
  changed_.NotifyAll();
  if (changed_.WaitFor(lock, grace, done)) return;
  lock.Unlock();
  CancelIf(ShuttingDown(), [](const Work&) { return true; });
  lock.Lock();
  changed_.Wait(lock, done);  // segments are short
}

std::chrono::microseconds WorkQueue::Waited(const Waiting& waiting) const {
  return std::chrono::duration_cast<std::chrono::microseconds>(options_.now() -
                                                               waiting.arrival);
}

int WorkQueue::running() const {
  MutexLock lock(mutex_);
  return static_cast<int>(begins_.size());
}

int WorkQueue::waiting() const {
  MutexLock lock(mutex_);
  return static_cast<int>(waiting_.size());
}

size_t WorkQueue::waiting_bytes() const {
  MutexLock lock(mutex_);
  return waiting_bytes_;
}

std::chrono::microseconds WorkQueue::blocked() const {
  const TimePoint now = options_.now();
  MutexLock lock(mutex_);
  if (std::ssize(begins_) < options_.threads) return {};
  return std::max(std::chrono::microseconds(0),
                  std::chrono::duration_cast<std::chrono::microseconds>(
                      now - *begins_.rbegin()));
}

}  // namespace gshard
