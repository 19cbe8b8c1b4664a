#include "services/rpc/process/signal_watcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <future>

namespace gshard {
namespace {

TEST(SignalWatcherTest, CallsBackOnItsThread) {
  for (const int number : {SIGTERM, SIGINT}) {
    std::promise<int> signalled;
    const std::thread::id here = std::this_thread::get_id();
    std::thread::id there;
    SignalWatcher watcher([&](int n) {
      there = std::this_thread::get_id();
      signalled.set_value(n);
    });
    kill(getpid(), number);
    EXPECT_EQ(signalled.get_future().get(), number);
    EXPECT_NE(there, here);
  }
}

TEST(SignalWatcherTest, EndsWithoutASignal) {
  struct sigaction before = {};
  sigaction(SIGTERM, nullptr, &before);
  {
    SignalWatcher watcher([](int) { FAIL(); });
  }
  struct sigaction after = {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(SignalWatcherDeathTest, ASecondSignalEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::promise<void> never;
        std::promise<void> began;
        SignalWatcher watcher([&](int) {
          began.set_value();
          never.get_future().wait();
        });
        kill(getpid(), SIGTERM);
        began.get_future().wait();
        kill(getpid(), SIGINT);
        never.get_future().wait();
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
}

}  // namespace
}  // namespace gshard
