#include "expert_worker/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/thread_priority.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kFull = absl::StatusCode::kResourceExhausted;
constexpr milliseconds kLong{300'000};

// A queue with a manual clock, whose threads tests can hold until Release().
class WorkQueueTest : public ::testing::Test {
 protected:
  WorkQueueTest() {
    options_.now = [this] {
      return WorkQueue::TimePoint(milliseconds(now_ms_));
    };
    options_.max_calls = 3;
    options_.max_bytes = 100;
  }

  void Start() { queue_.emplace(options_); }

  // Occupies one thread until Release().
  void Hold() {
    std::promise<void> begun;
    WorkQueue::Work work = MakeWork(0, 0, 0);
    work.run = [this, &begun](const absl::Status&, microseconds) {
      begun.set_value();
      released_.wait();
    };
    ASSERT_OK(queue_->Add(std::move(work)));
    begun.get_future().wait();
  }
  void Release() { release_.set_value(); }

  WorkQueue::Work MakeWork(uint64_t stream, uint64_t call, size_t bytes,
                           int timeout_ms = 1000) {
    return {.stream = stream,
            .call_id = call,
            .bytes = bytes,
            .deadline = options_.now() + milliseconds(timeout_ms),
            .run = [=, this](const absl::Status& status, microseconds waited) {
              std::lock_guard<std::mutex> lock(mutex_);
              log_.push_back(absl::StrCat(
                  call, " ", absl::StatusCodeToString(status.code()), " ",
                  waited.count() / 1000));
            }};
  }

  std::vector<std::string> log() {
    std::lock_guard<std::mutex> lock(mutex_);
    return log_;
  }

  std::atomic<int> now_ms_ = 5;
  WorkQueueOptions options_;
  std::mutex mutex_;
  std::vector<std::string> log_;
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  std::optional<WorkQueue> queue_;  // last: its threads use the other members
};

TEST_F(WorkQueueTest, RunsInOrderOfArrival) {
  Start();
  Hold();
  EXPECT_EQ(queue_->running(), 1);
  for (uint64_t call = 1; call <= 3; ++call) {
    ASSERT_OK(queue_->Add(MakeWork(1, call, 10)));
  }
  EXPECT_EQ(queue_->waiting(), 3);
  EXPECT_EQ(queue_->waiting_bytes(), 30u);
  now_ms_ += 7;
  Release();
  queue_->Finish(kLong);
  EXPECT_THAT(log(), ElementsAre("1 OK 7", "2 OK 7", "3 OK 7"));
  EXPECT_EQ(queue_->waiting_bytes(), 0u);
}

TEST_F(WorkQueueTest, IsBoundedInCallsAndBytes) {
  Start();
  Hold();
  // A call larger than the byte limit is accepted when it is alone.
  ASSERT_OK(queue_->Add(MakeWork(1, 1, 200)));
  EXPECT_THAT(queue_->Add(MakeWork(1, 2, 1)),
              StatusIs(kFull, HasSubstr("200 bytes wait")));
  queue_->Cancel(1, 1);
  ASSERT_OK(queue_->Add(MakeWork(1, 3, 100)));
  ASSERT_OK(queue_->Add(MakeWork(1, 4, 0)));
  ASSERT_OK(queue_->Add(MakeWork(1, 5, 0)));
  EXPECT_THAT(queue_->Add(MakeWork(1, 6, 0)),
              StatusIs(kFull, HasSubstr("3 calls")));
  Release();
  queue_->Finish(kLong);
  EXPECT_THAT(log(),
              ElementsAre("1 CANCELLED 0", "3 OK 0", "4 OK 0", "5 OK 0"));
}

TEST_F(WorkQueueTest, ItsThreadsAreAsNiceAsTheyShouldBe) {
  options_.threads = 2;
  options_.niceness = ThreadNiceness() + 2;
  Start();
  Hold();
  std::promise<int> niceness;
  WorkQueue::Work work = MakeWork(1, 1, 0);
  work.run = [&](const absl::Status&, microseconds) {
    niceness.set_value(ThreadNiceness());
  };
  ASSERT_OK(queue_->Add(std::move(work)));
  EXPECT_EQ(niceness.get_future().get(), options_.niceness);
  Release();
}

// A brief call runs on the thread that adds it if a thread is idle, which saves
// a wakeup; otherwise it waits in the queue.
TEST_F(WorkQueueTest, RunsABriefCallWhereItIsAdded) {
  Start();
  std::thread::id ran_by;
  const auto add = [&](uint64_t call, bool brief) {
    WorkQueue::Work work = MakeWork(1, call, 0);
    work.run = [&, run = work.run](const absl::Status& status,
                                   microseconds waited) {
      EXPECT_EQ(queue_->running(), 1);
      ran_by = std::this_thread::get_id();
      run(status, waited);
    };
    ASSERT_OK(queue_->Add(std::move(work), brief));
  };
  add(1, /*brief=*/true);
  EXPECT_THAT(log(), ElementsAre("1 OK 0"));
  EXPECT_EQ(ran_by, std::this_thread::get_id());
  EXPECT_EQ(queue_->running(), 0);
  Hold();
  add(2, /*brief=*/true);
  add(3, /*brief=*/true);
  EXPECT_EQ(queue_->waiting(), 2);
  Release();
  queue_->Finish(kLong);
  EXPECT_THAT(log(), ElementsAre("1 OK 0", "2 OK 0", "3 OK 0"));
  EXPECT_NE(ran_by, std::this_thread::get_id());
  EXPECT_TRUE(
      absl::IsUnavailable(queue_->Add(MakeWork(1, 4, 0), /*brief=*/true)));
}

// If the queue's threads are nicer than the caller, even a brief call runs on
// them: a job's segment must not run at the priority of translations.
TEST_F(WorkQueueTest, RunsNothingWhereThreadsAreLessNice) {
  options_.niceness = std::min(ThreadNiceness() + 1, 19);
  Start();
  std::promise<std::thread::id> ran_by;
  WorkQueue::Work work = MakeWork(1, 1, 0);
  work.run = [&](const absl::Status&, microseconds) {
    ran_by.set_value(std::this_thread::get_id());
  };
  ASSERT_OK(queue_->Add(std::move(work), /*brief=*/true));
  EXPECT_EQ(ran_by.get_future().get() == std::this_thread::get_id(),
            ThreadNiceness() >= options_.niceness);
}

TEST_F(WorkQueueTest, DoesNotBeginWhatIsLate) {
  Start();
  Hold();
  ASSERT_OK(queue_->Add(MakeWork(1, 1, 0, /*timeout_ms=*/10)));
  ASSERT_OK(queue_->Add(MakeWork(1, 2, 0, /*timeout_ms=*/11)));
  now_ms_ += 10;
  Release();
  queue_->Finish(kLong);
  EXPECT_THAT(log(), ElementsAre("1 DEADLINE_EXCEEDED 10", "2 OK 10"));
}

TEST_F(WorkQueueTest, CancelsWhatWaits) {
  Start();
  Hold();
  ASSERT_OK(queue_->Add(MakeWork(1, 1, 0)));
  ASSERT_OK(queue_->Add(MakeWork(2, 1, 0)));
  ASSERT_OK(queue_->Add(MakeWork(1, 2, 0)));
  queue_->Cancel(3, 1);
  EXPECT_EQ(queue_->waiting(), 3);
  queue_->CancelStream(1);
  EXPECT_THAT(log(), ElementsAre("1 CANCELLED 0", "2 CANCELLED 0"));
  EXPECT_EQ(queue_->waiting(), 1);
  queue_->Cancel(2, 1);
  EXPECT_EQ(queue_->waiting(), 0);
  Release();
}

TEST_F(WorkQueueTest, IsBlockedWhileNoThreadIsFree) {
  options_.threads = 2;
  Start();
  Hold();
  now_ms_ += 100;
  EXPECT_EQ(queue_->blocked(), milliseconds(0));
  Hold();
  now_ms_ += 30;
  EXPECT_EQ(queue_->blocked(), milliseconds(30));
  ASSERT_OK(queue_->Add(MakeWork(1, 1, 0)));
  EXPECT_EQ(queue_->blocked(), milliseconds(30));
  Release();
  queue_->Finish(kLong);
  EXPECT_EQ(queue_->blocked(), milliseconds(0));
}

TEST_F(WorkQueueTest, FinishesWhatItHasAccepted) {
  options_.threads = 2;
  Start();
  Hold();
  Hold();
  ASSERT_OK(queue_->Add(MakeWork(1, 1, 0)));
  ASSERT_OK(queue_->Add(MakeWork(1, 2, 0)));
  std::thread finisher([this] { queue_->Finish(kLong); });
  // Calls are refused once Finish() begins; those added before are accepted.
  uint64_t call = 3;
  std::vector<std::string> accepted = {"1 OK 0", "2 OK 0"};
  while (true) {
    const absl::Status added = queue_->Add(MakeWork(1, call, 0));
    if (absl::IsUnavailable(added)) break;
    if (added.ok()) accepted.push_back(absl::StrCat(call++, " OK 0"));
  }
  Release();
  finisher.join();
  EXPECT_THAT(log(), ::testing::UnorderedElementsAreArray(accepted));
}

TEST_F(WorkQueueTest, FinishesWithinItsGrace) {
  Start();
  Hold();
  ASSERT_OK(queue_->Add(MakeWork(1, 1, 0)));
  ASSERT_OK(queue_->Add(MakeWork(1, 2, 0)));
  std::thread finisher([this] { queue_->Finish(milliseconds(1)); });
  // Finish() waits for running calls.
  while (log().size() < 2) std::this_thread::yield();
  EXPECT_EQ(queue_->running(), 1);
  Release();
  finisher.join();
  EXPECT_THAT(log(), ElementsAre("1 UNAVAILABLE 0", "2 UNAVAILABLE 0"));
}

}  // namespace
}  // namespace gshard
