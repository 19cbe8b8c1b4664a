#include "router/batching/preparer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/retry_delay.h"
#include "services/base/share.h"
#include "services/base/thread_priority.h"
#include "services/rpc/wire/trace_scope.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

namespace {

// Share of a core that a batch also wants: text of many requests, most of which
// may be refused, must not delay translations.
constexpr int64_t kPercentOfCore = 25;

// Everything queued is prepared in less time, unless the machine is busy.
constexpr std::chrono::milliseconds kRetryDelay{1'000};

absl::Status TooLate() {
  return absl::DeadlineExceededError("the request was not prepared in time");
}

absl::Status Refused(std::string why) {
  return WithRetryDelay(absl::ResourceExhaustedError(why), kRetryDelay);
}

}  // namespace

Preparer::Preparer(const PreparerLimits& limits, RouterMetrics metrics)
    : limits_(limits), metrics_(std::move(metrics)) {
  CHECK(limits_.threads >= 1);
  for (int i = 0; i < limits_.threads; ++i) {
    threads_.emplace_back([this] { RunThread(); });
  }
}

Preparer::~Preparer() {
  Finish(std::chrono::milliseconds(0));
  {
    MutexLock lock(mutex_);
    // Other threads may be in GiveUp().
    over_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return entries_.empty();
    });
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<uint64_t> Preparer::Add(Task task) {
  CHECK(task.bytes > 0);
  auto entry = std::make_shared<Entry>();
  entry->task = std::move(task);
  const int64_t bytes = entry->task.bytes;
  MutexLock lock(mutex_);
  if (finishing_) {
    return absl::UnavailableError("the router is shutting down");
  }
  const int64_t free = limits_.max_bytes - bytes_ - bytes;
  if (bytes_ > 0 && free < 0) {
    metrics_.CountAdmission(Verdict::kQueueFull);
    return Refused(absl::StrCat("the queue is full: requests of ", bytes_,
                                " bytes wait, and this has ", bytes,
                                "; at most ", limits_.max_bytes, " may"));
  }
  const auto its = callers_.find(entry->task.caller);
  if (its != callers_.end() && !IsWithinShare(its->second, bytes, free)) {
    metrics_.CountAdmission(Verdict::kOverShare);
    return Refused(absl::StrCat("the caller has requests of ", its->second,
                                " bytes waiting, and this has ", bytes,
                                ": the rest is for others"));
  }
  entry->id = ++last_id_;
  entries_[entry->id] = entry;
  deadlines_.emplace(entry->task.deadline, entry->id);
  callers_[entry->task.caller] += bytes;
  bytes_ += bytes;
  metrics_.preparing_bytes.Set(static_cast<double>(bytes_));
  Wait(*entry, bytes);
  return entry->id;
}

void Preparer::Wait(const Entry& entry, int64_t bytes) {
  queue_.Add({.caller = entry.task.caller,
              .flow = entry.task.flow,
              .request = entry.id,
              .sentence = 0,
              .cost = {.rows = 1, .rounds = static_cast<double>(bytes)},
              .arrival = {}});
  changed_.NotifyOne();
}

void Preparer::Remove(const Entry& entry) {
  entries_.erase(entry.id);
  deadlines_.erase({entry.task.deadline, entry.id});
  const auto its = callers_.find(entry.task.caller);
  its->second -= entry.task.bytes;
  if (its->second == 0) callers_.erase(its);
  bytes_ -= entry.task.bytes;
  metrics_.preparing_bytes.Set(static_cast<double>(bytes_));
  if (entries_.empty()) over_.NotifyAll();
}

bool Preparer::End(Entry& entry, const absl::Status& why) {
  deadlines_.erase({entry.task.deadline, entry.id});
  if (entry.running) {
    entry.end.Update(why);
    return false;
  }
  queue_.Remove(entry.task.caller, entry.task.flow, entry.id);
  entry.running = true;
  return true;
}

void Preparer::Cancel(uint64_t id) {
  std::shared_ptr<Entry> entry;
  const auto why = absl::CancelledError("the client cancelled or was lost");
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    entry = found->second;
    if (!End(*entry, why)) return;
  }
  GiveUp(*entry, why);
}

void Preparer::GiveUp(const Entry& entry, const absl::Status& why) {
  entry.task.give_up(why);
  MutexLock lock(mutex_);
  Remove(entry);
}

Preparer::Entries Preparer::TakeExpired() {
  Entries expired;
  const Clock::time_point now = Clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    std::shared_ptr<Entry> entry = entries_.at(deadlines_.begin()->second);
    if (End(*entry, TooLate())) expired.push_back(std::move(entry));
  }
  return expired;
}

void Preparer::RunThread() {
  BeNice(NicenessOfShare(kPercentOfCore));
  MutexLock lock(mutex_);
  while (true) {
    changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || !queue_.empty();
    });
    // Parts are short, so expired tasks need no separate thread.
    const Entries expired = TakeExpired();
    if (!expired.empty()) {
      lock.Unlock();
      for (const auto& entry : expired) GiveUp(*entry, TooLate());
      lock.Lock();
      continue;
    }
    if (queue_.empty()) return;  // stopping
    const std::shared_ptr<Entry> entry = entries_.at(queue_.Take().request);
    entry->running = true;
    lock.Unlock();
    int64_t next = 0;
    {
      const TraceScope scope(entry->task.trace);
      next = entry->task.prepare_next();
    }
    lock.Lock();
    if (next == 0) {
      Remove(*entry);
    } else if (entry->end.ok()) {
      entry->running = false;
      Wait(*entry, next);
    } else {
      const absl::Status why = entry->end;
      lock.Unlock();
      GiveUp(*entry, why);
      lock.Lock();
    }
  }
}

void Preparer::Finish(std::chrono::milliseconds grace) {
  const auto why = absl::UnavailableError("the router is shutting down");
  Entries late;
  {
    MutexLock lock(mutex_);
    finishing_ = true;
    over_.WaitFor(lock, grace, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return entries_.empty();
    });
    Entries left;
    for (const auto& [id, entry] : entries_) left.push_back(entry);
    for (const std::shared_ptr<Entry>& entry : left) {
      if (End(*entry, why)) late.push_back(entry);
    }
  }
  for (const std::shared_ptr<Entry>& entry : late) GiveUp(*entry, why);
}

}  // namespace gshard
