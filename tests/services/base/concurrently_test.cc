#include "services/base/concurrently.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <latch>
#include <new>
#include <thread>
#include <vector>

#include "tests/services/base/no_new_threads.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(RunConcurrentlyTest, CallsEachOnce) {
  for (const size_t threads : {1, 2, 7}) {
    for (const size_t count : {0, 1, 5, 1000}) {
      std::vector<int> calls(count, 0);
      EXPECT_OK(RunConcurrently(count, threads, [&](size_t i) {
        ++calls[i];
        return absl::OkStatus();
      }));
      EXPECT_EQ(calls, std::vector<int>(count, 1));
    }
  }
}

// Each call waits for the others, so all five must run at once.
TEST(RunConcurrentlyTest, CallsMayWaitForEachOther) {
  std::latch all(5);
  EXPECT_OK(RunConcurrently(5, 5, [&](size_t) {
    all.arrive_and_wait();
    return absl::OkStatus();
  }));
}

TEST(RunConcurrentlyTest, DoesEverythingWithoutOtherThreads) {
  const NoNewThreads none;
  std::vector<std::thread::id> where(5);
  EXPECT_OK(RunConcurrently(where.size(), 3, [&](size_t i) {
    where[i] = std::this_thread::get_id();
    return absl::OkStatus();
  }));
  EXPECT_THAT(where, Each(std::this_thread::get_id()));
}

TEST(RunConcurrentlyTest, NothingBeginsAfterAnError) {
  std::atomic<int> calls = 0;
  EXPECT_THAT(RunConcurrently(1000, 1,
                              [&](size_t i) {
                                ++calls;
                                return i == 3 ? absl::DataLossError("third")
                                              : absl::OkStatus();
                              }),
              StatusIs(absl::StatusCode::kDataLoss, "third"));
  EXPECT_EQ(calls, 4);
}

TEST(RunConcurrentlyTest, MemoryThatIsNotThereIsAnErrorOnAnyThread) {
  std::latch all(2);
  EXPECT_THAT(
      RunConcurrently(2, 2,
                      [&](size_t) -> absl::Status {
                        all.arrive_and_wait();
                        throw std::bad_alloc();
                      }),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory")));
}

}  // namespace
}  // namespace gshard
