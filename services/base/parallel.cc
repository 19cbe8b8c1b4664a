#include "services/base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "services/base/check.h"
#include "services/base/mutex.h"
#include "services/base/thread_priority.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread spins for work, or for the end of others' tiles, before it
// sleeps. Kernels follow each other within microseconds, and waking a thread
// takes tens of them.
constexpr std::chrono::microseconds kSpin{100};

// Spins until `done`, yielding the core to others; false after kSpin.
template <typename Done>
bool SpinUntil(const Done& done) {
  const Clock::time_point end = Clock::now() + kSpin;
  while (!done()) {
    if (Clock::now() >= end) return false;
    sched_yield();
  }
  return true;
}

// One loop, on its caller's stack.
struct Loop {
  const int64_t tiles;
  const absl::FunctionRef<void(int64_t)> body;
  std::atomic<int64_t> next = 0;
  std::atomic<int> helpers = 0;  // changed under the pool's mutex
  std::atomic<bool> no_memory = false;

  // Takes tiles until none are left.
  void Run() {
    for (int64_t i;
         (i = next.fetch_add(1, std::memory_order_relaxed)) < tiles;) {
      try {
        body(i);
      } catch (const std::bad_alloc&) {
        no_memory = true;
      }
    }
  }
};

thread_local bool in_body = false;

class Pool {
 public:
  Pool(int helpers, int niceness) {
    for (int i = 0; i < helpers; ++i) {
      try {
        threads_.emplace_back([this, niceness] {
          BeNice(niceness);
          in_body = true;
          Help();
        });
      } catch (const std::system_error&) {
        break;  // no more threads: those that are there do it
      }
    }
  }
  ~Pool() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      came_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(Loop& loop) {
    {
      MutexLock lock(mutex_);
      loops_.push_back(&loop);
      open_.fetch_add(1, std::memory_order_relaxed);
      if (sleeping_ > 0) came_.NotifyAll();
    }
    in_body = true;
    loop.Run();
    in_body = false;
    {
      MutexLock lock(mutex_);
      Close(loop);  // no helper can join any more
    }
    const auto alone = [&loop] { return loop.helpers == 0; };
    if (SpinUntil(alone)) return;
    MutexLock lock(mutex_);
    left_.Wait(lock, alone);
  }

  void Rest() { rests_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void Help() {
    uint64_t rests = rests_;
    MutexLock lock(mutex_);
    while (true) {
      if (loops_.empty() && !stopping_) {
        lock.Unlock();
        SpinUntil([this, rests] {
          return open_.load(std::memory_order_relaxed) > 0 ||
                 rests_.load(std::memory_order_relaxed) != rests;
        });
        lock.Lock();
        ++sleeping_;
        came_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || !loops_.empty();
        });
        --sleeping_;
      }
      if (stopping_) return;
      Loop& loop = *loops_[turn_++ % loops_.size()];
      ++loop.helpers;
      // The loop's caller may call Rest() as soon as its loop is done.
      rests = rests_;
      lock.Unlock();
      loop.Run();
      lock.Lock();
      Close(loop);
      // Once the last helper has left, the loop may be destroyed.
      if (--loop.helpers == 0) left_.NotifyAll();
    }
  }

  void Close(const Loop& loop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = std::find(loops_.begin(), loops_.end(), &loop);
    if (found == loops_.end()) return;
    loops_.erase(found);
    open_.fetch_sub(1, std::memory_order_relaxed);
  }

  Mutex mutex_;
  CondVar came_;  // loops_, stopping_
  CondVar left_;  // helpers of loops
  // Loops with tiles that nobody has taken.
  std::vector<Loop*> loops_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> open_ = 0;     // loops_.size(), read without the mutex
  std::atomic<uint64_t> rests_ = 0;  // counts Rest() calls
  size_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  int sleeping_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

class Pools {
 public:
  static Pools& Get() {
    static Pools pools;
    return pools;
  }

  int threads() const { return threads_; }

  void Set(int threads) {
    CHECK(threads >= 1);
    MutexLock lock(mutex_);
    pools_.clear();
    threads_ = threads;
  }

  // The calling thread's pool, created on first use.
  Pool& Mine() {
    const int niceness = ThreadNiceness();
    MutexLock lock(mutex_);
    std::unique_ptr<Pool>& pool = pools_[niceness];
    if (pool == nullptr) pool = std::make_unique<Pool>(threads_ - 1, niceness);
    return *pool;
  }

  // For the calling thread's pool, if any. May run while threads are set.
  void Rest() {
    const int niceness = ThreadNiceness();
    MutexLock lock(mutex_);
    const auto found = pools_.find(niceness);
    if (found != pools_.end()) found->second->Rest();
  }

 private:
  std::atomic<int> threads_ = 1;
  Mutex mutex_;
  std::map<int, std::unique_ptr<Pool>> pools_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void SetComputeThreads(int threads) { Pools::Get().Set(threads); }

int ComputeThreads() { return Pools::Get().threads(); }

void ParallelFor(int64_t tiles, absl::FunctionRef<void(int64_t)> body) {
  if (tiles <= 1 || in_body || ComputeThreads() == 1) {
    for (int64_t i = 0; i < tiles; ++i) body(i);
    return;
  }
  Loop loop{.tiles = tiles, .body = body};
  Pools::Get().Mine().Run(loop);
  if (loop.no_memory) throw std::bad_alloc();
}

void RestHelpers() { Pools::Get().Rest(); }

}  // namespace gshard
