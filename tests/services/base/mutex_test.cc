#include "services/base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <thread>

namespace gshard {
namespace {

struct Shared {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(MutexTest, OneAtATimeHoldsIt) {
  Shared shared;
  const auto add = [&] {
    for (int i = 0; i < 1000; ++i) {
      MutexLock lock(shared.mutex);
      ++shared.value;
    }
  };
  std::thread other(add);
  add();
  other.join();
  MutexLock lock(shared.mutex);
  EXPECT_EQ(shared.value, 2000);
}

TEST(MutexTest, ALockLetsGoInBetween) {
  Shared shared;
  MutexLock lock(shared.mutex);
  lock.Unlock();
  std::thread([&] {
    MutexLock lock(shared.mutex);
    shared.value = 1;
  }).join();
  lock.Lock();
  EXPECT_EQ(shared.value, 1);
}

TEST(MutexTest, ManyRead) {
  SharedMutex mutex;
  int value = 0;
  {
    WriterMutexLock lock(mutex);
    value = 1;
  }
  std::latch both(2);  // both readers hold the lock at once
  const auto read = [&] {
    ReaderMutexLock lock(mutex);
    both.arrive_and_wait();
    EXPECT_EQ(value, 1);
  };
  std::thread other(read);
  read();
  other.join();
}

TEST(CondVarTest, WaitsForThePredicate) {
  Shared shared;
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) {
      MutexLock lock(shared.mutex);
      ++shared.value;
      shared.changed.NotifyAll();
    }
  });
  {
    MutexLock lock(shared.mutex);
    shared.changed.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                  shared.mutex) { return shared.value == 3; });
    EXPECT_EQ(shared.value, 3);
  }
  other.join();
}

TEST(CondVarTest, SaysWhatThePredicateSaysInTheEnd) {
  Shared shared;
  const auto is_zero = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared.mutex) {
    return shared.value == 0;
  };
  const auto is_one = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared.mutex) {
    return shared.value == 1;
  };
  constexpr std::chrono::milliseconds kMoment{1};
  MutexLock lock(shared.mutex);
  EXPECT_TRUE(shared.changed.WaitFor(lock, kMoment, is_zero));
  EXPECT_FALSE(shared.changed.WaitFor(lock, kMoment, is_one));
  const auto now = std::chrono::steady_clock::now();
  EXPECT_TRUE(shared.changed.WaitUntil(lock, now, is_zero));
  EXPECT_FALSE(shared.changed.WaitUntil(lock, now, is_one));
}

}  // namespace
}  // namespace gshard
