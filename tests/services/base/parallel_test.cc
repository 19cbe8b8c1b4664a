#include "services/base/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <latch>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include "services/base/thread_priority.h"
#include "tests/services/base/no_new_threads.h"

namespace gshard {
namespace {

class ParallelTest : public ::testing::TestWithParam<int> {
 protected:
  ParallelTest() { SetComputeThreads(GetParam()); }
  ~ParallelTest() override { SetComputeThreads(1); }
};
INSTANTIATE_TEST_SUITE_P(Threads, ParallelTest, ::testing::Values(1, 2, 7));

TEST_P(ParallelTest, EachTileIsComputedOnce) {
  for (const int64_t tiles : {0, 1, 2, 6, 7, 1000}) {
    std::vector<int> counts(tiles, 0);
    ParallelFor(tiles, [&](int64_t i) { ++counts[i]; });
    EXPECT_EQ(counts, std::vector<int>(tiles, 1));
  }
}

TEST_P(ParallelTest, PartsCoverTheWhole) {
  for (const int64_t size : {0, 1, 4, 5, 23}) {
    std::vector<int> counts(size, 0);
    ParallelForChunks(size, 5, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin % 5, 0);
      EXPECT_LE(end - begin, 5);
      for (int64_t i = begin; i < end; ++i) ++counts[i];
    });
    EXPECT_EQ(counts, std::vector<int>(size, 1));
  }
}

TEST_P(ParallelTest, OneThreadComputesEverythingWhereNoOtherCanStart) {
  const NoNewThreads none;
  std::vector<std::thread::id> where(5);
  ParallelFor(5, [&](int64_t i) { where[i] = std::this_thread::get_id(); });
  EXPECT_THAT(where, ::testing::Each(std::this_thread::get_id()));
}

// Each tile waits until every thread computes one.
TEST_P(ParallelTest, AllThreadsTakePart) {
  std::latch all(GetParam());
  std::mutex mutex;
  std::set<std::thread::id> threads;
  ParallelFor(GetParam(), [&](int64_t) {
    all.arrive_and_wait();
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(static_cast<int>(threads.size()), GetParam());
  EXPECT_TRUE(threads.contains(std::this_thread::get_id()));
}

// All helpers that were told to rest return for the next loop.
TEST_P(ParallelTest, AllThreadsTakePartAfterARest) {
  RestHelpers();  // also valid without a pool
  for (int round = 0; round < 200; ++round) {
    std::latch all(GetParam());
    ParallelFor(GetParam(), [&](int64_t) { all.arrive_and_wait(); });
    RestHelpers();
  }
}

TEST_P(ParallelTest, ALoopInABodyRunsOnItsThread) {
  ParallelFor(16, [](int64_t) {
    const auto thread = std::this_thread::get_id();
    int inner = 0;
    ParallelFor(16, [&](int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      ++inner;
    });
    EXPECT_EQ(inner, 16);
  });
}

TEST_P(ParallelTest, LoopsOfManyThreadsDoNotMix) {
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([] {
      for (int64_t round = 0; round < 200; ++round) {
        std::vector<int64_t> results(round % 23, 0);
        ParallelFor(static_cast<int64_t>(results.size()),
                    [&](int64_t i) { results[i] += round + i; });
        for (size_t i = 0; i < results.size(); ++i) {
          ASSERT_EQ(results[i], round + static_cast<int64_t>(i));
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_P(ParallelTest, MemoryThatIsNotThereIsTheCallersToHandle) {
  std::atomic<int> others = 0;
  EXPECT_THROW(ParallelFor(16,
                           [&](int64_t i) {
                             if (i == 3) throw std::bad_alloc();
                             ++others;
                           }),
               std::bad_alloc);
  EXPECT_EQ(others, GetParam() > 1 ? 15 : 3);
  ParallelFor(16, [&](int64_t) { ++others; });
  EXPECT_GE(others, 16);
}

TEST_P(ParallelTest, TilesAreAsNiceAsWhoCalls) {
  std::thread([] {
    BeNice(ThreadNiceness() + 3);
    const int niceness = ThreadNiceness();
    std::latch all(GetParam());
    ParallelFor(GetParam(), [&](int64_t) {
      all.arrive_and_wait();
      EXPECT_EQ(ThreadNiceness(), niceness);
    });
  }).join();
  std::latch all(GetParam());
  const int niceness = ThreadNiceness();
  ParallelFor(GetParam(), [&](int64_t) {
    all.arrive_and_wait();
    EXPECT_EQ(ThreadNiceness(), niceness);
  });
}

}  // namespace
}  // namespace gshard
