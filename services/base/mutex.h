// std::mutex and relatives as types that Clang's thread safety analysis knows:
// a member names its mutex by ABSL_GUARDED_BY, a function the one that its
// caller must hold by ABSL_EXCLUSIVE_LOCKS_REQUIRED, and code that accesses the
// member or calls the function without the mutex does not compile
// (-Wthread-safety; GCC ignores the annotations).
//
// Names are those of absl::Mutex, which is not used because ThreadSanitizer
// sees std::mutex only: Debian's Abseil is not instrumented.

#ifndef SERVICES_BASE_MUTEX_H_
#define SERVICES_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"  // IWYU pragma: export

namespace gshard {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// One writer or any number of readers.
class ABSL_LOCKABLE SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() { mutex_.lock_shared(); }
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

// Holds a mutex until the end of its scope, except between Unlock() and Lock().
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : lock_(mutex.mutex_) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { lock_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

class ABSL_SCOPED_LOCKABLE ReaderMutexLock {
 public:
  explicit ReaderMutexLock(SharedMutex& mutex) ABSL_SHARED_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.ReaderLock();
  }
  ReaderMutexLock(const ReaderMutexLock&) = delete;
  ReaderMutexLock& operator=(const ReaderMutexLock&) = delete;
  ~ReaderMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.ReaderUnlock(); }

 private:
  SharedMutex& mutex_;
};

class ABSL_SCOPED_LOCKABLE WriterMutexLock {
 public:
  explicit WriterMutexLock(SharedMutex& mutex)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.Lock();
  }
  WriterMutexLock(const WriterMutexLock&) = delete;
  WriterMutexLock& operator=(const WriterMutexLock&) = delete;
  ~WriterMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }

 private:
  SharedMutex& mutex_;
};

// To the analysis a mutex is held throughout a wait. A predicate runs with the
// mutex held and declares it:
//
//   changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
//     return stopping_;
//   });
//
// A template cannot declare that its caller holds the predicate's mutex, so the
// functions that call one are not analyzed.
class CondVar {
 public:
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

  void Wait(MutexLock& lock) { condition_.wait(lock.lock_); }

  template <typename Predicate>
  void Wait(MutexLock& lock,
            Predicate predicate) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    while (!predicate()) Wait(lock);
  }

  // `end` by value: its source may change during the wait.
  template <typename Clock, typename Duration>
  void WaitUntil(MutexLock& lock,
                 std::chrono::time_point<Clock, Duration> end) {
    condition_.wait_until(lock.lock_, end);
  }

  // Returns the predicate's final value.
  template <typename Clock, typename Duration, typename Predicate>
  bool WaitUntil(MutexLock& lock, std::chrono::time_point<Clock, Duration> end,
                 Predicate predicate) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_until(lock.lock_, end, predicate);
  }

  template <typename Rep, typename Period>
  void WaitFor(MutexLock& lock,
               const std::chrono::duration<Rep, Period>& time) {
    condition_.wait_for(lock.lock_, time);
  }

  template <typename Rep, typename Period, typename Predicate>
  bool WaitFor(MutexLock& lock, const std::chrono::duration<Rep, Period>& time,
               Predicate predicate) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_for(lock.lock_, time, predicate);
  }

 private:
  std::condition_variable condition_;
};

}  // namespace gshard

#endif  // SERVICES_BASE_MUTEX_H_
