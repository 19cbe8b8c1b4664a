#include "router/batching/preparer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "services/base/retry_delay.h"
#include "services/metrics/metrics.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kForever = std::chrono::steady_clock::time_point::max();

// Records tasks by caller in the order of their parts, with a status code for
// those given up.
class Diary {
 public:
  void Write(std::string line) {
    std::lock_guard<std::mutex> lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> lines() {
    std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;  // guarded by mutex_
};

// A preparer with one thread, which another caller occupies until Release().
class PreparerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 1000;

  PreparerTest() {
    // Takes one byte, which max_bytes has beyond kBytes.
    EXPECT_OK(preparer_.Add({.caller = "first",
                             .flow = 1,
                             .bytes = 1,
                             .deadline = kForever,
                             .prepare_next =
                                 [this] {
                                   begun_.set_value();
                                   release_.get_future().wait();
                                   return 0;
                                 },
                             .give_up = [](const absl::Status&) {}}));
    begun_.get_future().wait();
  }
  ~PreparerTest() override {
    if (!released_) Release();
  }

  void Release() {
    released_ = true;
    release_.set_value();
  }
  std::vector<std::string> ReleaseAndFinish() {
    Release();
    preparer_.Finish(std::chrono::minutes(1));
    return diary_.lines();
  }

  absl::StatusOr<uint64_t> Add(
      const std::string& caller, int64_t bytes, int parts = 1,
      std::chrono::steady_clock::time_point deadline = kForever) {
    auto left = std::make_shared<int>(parts);
    return preparer_.Add({.caller = caller,
                          .flow = 1,
                          .bytes = bytes,
                          .deadline = deadline,
                          .prepare_next =
                              [this, caller, bytes, left] {
                                diary_.Write(caller);
                                return --*left > 0 ? bytes : 0;
                              },
                          .give_up =
                              [this, caller](const absl::Status& why) {
                                diary_.Write(
                                    caller + " " +
                                    absl::StatusCodeToString(why.code()));
                              }});
  }

  Metrics registry_{"router", "test"};
  const RouterMetrics metrics_{registry_};
  Diary diary_;
  std::promise<void> begun_, release_;
  bool released_ = false;
  Preparer preparer_{{.threads = 1, .max_bytes = kBytes + 1}, metrics_};
};

TEST_F(PreparerTest, CallersTakeTurnsAfterEachPart) {
  EXPECT_OK(Add("much", 200, 3));
  EXPECT_OK(Add("little", 1));
  EXPECT_OK(Add("less", 1, 2));
  EXPECT_THAT(diary_.lines(), IsEmpty());
  EXPECT_THAT(ReleaseAndFinish(),
              ElementsAre("much", "little", "less", "much", "less", "much"));
  EXPECT_EQ(metrics_.preparing_bytes.Value(), 0);
}

TEST_F(PreparerTest, WhatWaitsIsBoundedAndShared) {
  EXPECT_OK(Add("a", 400));
  EXPECT_OK(Add("a", 200));  // 600 in use, 400 free
  const auto refused = Add("a", 200);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("600 bytes waiting")));
  EXPECT_TRUE(RetryDelay(refused.status()).has_value());
  EXPECT_OK(Add("b", 300));
  const auto full = Add("c", 101);
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr("the queue is full")));
  EXPECT_TRUE(RetryDelay(full.status()).has_value());
  EXPECT_OK(Add("c", 100));
  EXPECT_THAT(ReleaseAndFinish(), ElementsAre("a", "b", "c", "a"));
}

TEST_F(PreparerTest, OneMayHaveAllOfIt) {
  Preparer preparer({.threads = 1, .max_bytes = 10});
  std::promise<void> done;
  EXPECT_OK(preparer.Add({.caller = "a",
                          .flow = 1,
                          .bytes = 100,
                          .deadline = kForever,
                          .prepare_next =
                              [&] {
                                done.set_value();
                                return 0;
                              },
                          .give_up = [](const absl::Status&) {}}));
  done.get_future().wait();
}

TEST_F(PreparerTest, WhoIsTooLateIsToldInsteadOfPrepared) {
  EXPECT_OK(Add("late", 1, 1, std::chrono::steady_clock::now()));
  EXPECT_OK(Add("in time", 1));
  EXPECT_THAT(ReleaseAndFinish(),
              ElementsAre("late DEADLINE_EXCEEDED", "in time"));
}

TEST_F(PreparerTest, WhoWaitsIsCancelledAtOnce) {
  ASSERT_OK_AND_ASSIGN(const uint64_t waits, Add("waits", 1));
  preparer_.Cancel(waits);
  EXPECT_THAT(diary_.lines(), ElementsAre("waits CANCELLED"));
  EXPECT_EQ(metrics_.preparing_bytes.Value(), 1);
  preparer_.Cancel(waits);  // already cancelled
  EXPECT_THAT(ReleaseAndFinish(), ElementsAre("waits CANCELLED"));
}

TEST_F(PreparerTest, WhoRunsIsCancelledAfterThePart) {
  std::promise<uint64_t> number;
  ASSERT_OK_AND_ASSIGN(
      const uint64_t id,
      preparer_.Add({.caller = "a",
                     .flow = 1,
                     .bytes = 1,
                     .deadline = kForever,
                     .prepare_next =
                         [&] {
                           preparer_.Cancel(number.get_future().get());
                           diary_.Write("part");
                           return 1;
                         },
                     .give_up =
                         [&](const absl::Status& why) {
                           diary_.Write(absl::StatusCodeToString(why.code()));
                         }}));
  number.set_value(id);
  EXPECT_THAT(ReleaseAndFinish(), ElementsAre("part", "CANCELLED"));
}

TEST_F(PreparerTest, NobodyIsForgottenAtTheEnd) {
  EXPECT_OK(Add("waits", 1));
  preparer_.Finish(std::chrono::milliseconds(0));
  EXPECT_THAT(diary_.lines(), ElementsAre("waits UNAVAILABLE"));
  EXPECT_THAT(Add("comes late", 1), StatusIs(absl::StatusCode::kUnavailable,
                                             HasSubstr("shutting down")));
}

}  // namespace
}  // namespace gshard
