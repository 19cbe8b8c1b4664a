#include "services/base/memory_account.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <utility>
#include <vector>

namespace gshard {
namespace {

TEST(MemoryAccountTest, NobodyGetsWhatOthersHave) {
  const MemoryAccount account(10);
  MemoryShare first(account);
  EXPECT_TRUE(first.Take(4));
  EXPECT_TRUE(first.Take(2));
  {
    const MemoryAccount same = account;
    MemoryShare second(same);
    EXPECT_FALSE(second.Take(5));
    EXPECT_TRUE(second.Take(4));
    EXPECT_EQ(account.free(), 0);
    EXPECT_TRUE(second.Take(0));
    const MemoryShare moved = std::move(second);
    EXPECT_EQ(moved.bytes(), 4);
    EXPECT_EQ(account.used(), 10);
  }
  EXPECT_EQ(account.used(), 6);
  first.Return(7);
  EXPECT_EQ(account.used(), 6);
  first.Return(2);
  EXPECT_EQ(account.used(), 2);
  EXPECT_EQ(first.bytes(), 2);
  first.Return();
  EXPECT_EQ(account.used(), 0);
}

TEST(MemoryAccountTest, ThreadsTakeNoMoreThanThereIs) {
  constexpr int kThreads = 4;
  const MemoryAccount account(3);
  std::atomic<int> holders = 0, most = 0;
  std::barrier begin(kThreads);  // makes the threads overlap
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      for (int i = 0; i < 200'000; ++i) {
        MemoryShare share(account);
        if (!share.Take(2)) continue;
        const int now = ++holders;
        if (now > most) most = now;
        --holders;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(account.used(), 0);
}

}  // namespace
}  // namespace gshard
