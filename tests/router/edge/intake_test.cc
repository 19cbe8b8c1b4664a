// Intake: the way of a request to the batcher, with a fake model.

#include "router/edge/intake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "router/edge/translate_request.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/rpc/wire/raw_message.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Response = absl::StatusOr<v1::TranslateResponse>;

constexpr int kMaxWaiting = 4;  // sentences
constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;

class IntakeTest : public ::testing::Test {
 protected:
  explicit IntakeTest(
      const AdmissionLimits& limits = {.max_queued_sentences = kMaxWaiting})
      : batcher_({.admission = limits}) {
    EXPECT_OK(models_.Add(model_));
  }

  // Takes a request whose own deadline, known once it is parsed, is `deadline`,
  // in a call whose deadline is far.
  std::future<Response> Take(int sentences, Clock::time_point deadline,
                             const std::string& caller = "shop",
                             const std::string& text = "a") {
    v1::TranslateRequest request;
    for (int i = 0; i < sentences; ++i) {
      v1::Sentence* const sentence = request.add_sentences();
      sentence->set_text(text);
      sentence->set_source_language("de");
    }
    auto done = std::make_shared<std::promise<Response>>();
    EXPECT_OK(intake_.Take(
        {.bytes = SerializeRaw(request),
         .user = {caller, AllGrants()},
         .caller = caller,
         .deadline = Clock::now() + std::chrono::hours(1),
         .stop = stop_,
         .parse = [deadline](
                      grpc::ByteBuffer bytes) -> absl::StatusOr<ParsedRequest> {
           ASSIGN_OR_RETURN(v1::TranslateRequest parsed,
                            ParseTranslateRequest(std::move(bytes)));
           return ParsedRequest{std::move(parsed), deadline};
         },
         .done = [done](const std::string&,
                        Response response) { done->set_value(response); }}));
    return done->get_future();
  }

  const std::shared_ptr<FakeModel> model_ =
      std::make_shared<FakeModel>("tiny@1");
  const std::shared_ptr<Cancellation> stop_ = std::make_shared<Cancellation>();
  ModelTable models_;
  Batcher batcher_;
  Preparer preparer_{{}};
  Intake intake_{&models_, &preparer_, &batcher_, {}};
};

TEST_F(IntakeTest, ARequestThatIsTooLateIsNotPrepared) {
  EXPECT_THAT(Take(2, Clock::now()).get(),
              StatusIs(kLate, HasSubstr("not prepared in time")));
  EXPECT_EQ(model_->encodings(), 0u);
}

TEST_F(IntakeTest, ARequestWhoseTimePassesIsPreparedNoFurther) {
  for (const int sentences : {1, 2}) {
    const size_t before = model_->encodings();
    model_->HoldEncoding();
    const auto deadline = Clock::now() + std::chrono::milliseconds(50);
    auto response = Take(sentences, deadline);
    while (Clock::now() < deadline) std::this_thread::yield();
    model_->ReleaseEncoding();
    EXPECT_THAT(response.get(),
                StatusIs(kLate, HasSubstr("not prepared in time")));
    EXPECT_LE(model_->encodings(), before + 1);
  }
  EXPECT_OK(Take(2, Clock::now() + std::chrono::hours(1)).get());
}

// A request that a full queue would refuse is not tokenized. A caller with work
// here is refused a large text only after a part of the retry delay.
TEST_F(IntakeTest, WhatWouldBeRefusedIsNotMadeTokensOf) {
  const auto never = Clock::now() + std::chrono::hours(1);
  model_->Hold();
  auto runs = Take(1, never);
  model_->WaitForSteps(1);
  auto waits = Take(kMaxWaiting, never);
  while (batcher_.queued_sentences() < kMaxWaiting) std::this_thread::yield();
  const size_t encodings = model_->encodings();
  const std::string large(kMaxTextBytes, 'a'), small = "a";
  for (const auto& [caller, text, told_ms] : {std::tuple("shop", large, 4),
                                              {"shop", small, 10},
                                              {"new", large, 10}}) {
    SCOPED_TRACE(caller);
    const auto start = Clock::now();
    const Response refused = Take(kMaxWaiting, never, caller, text).get();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("the queue is full")));
    const std::chrono::milliseconds told(told_ms);
    EXPECT_EQ(RetryDelay(refused.status()), told);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(10) - told);
  }
  EXPECT_EQ(model_->encodings(), encodings);
  model_->Release();
  EXPECT_OK(runs.get());
  EXPECT_OK(waits.get());
  EXPECT_OK(Take(kMaxWaiting, never).get());
}

TEST_F(IntakeTest, WhatNobodyWaitsForAnyMoreIsDoneInsideOfTake) {
  const auto never = Clock::now() + std::chrono::hours(1);
  model_->HoldEncoding();
  auto first = Take(1, never);  // occupies the only thread
  model_->WaitForEncodings(1);
  stop_->Cancel();
  auto response = Take(1, never);
  ASSERT_EQ(response.wait_for(std::chrono::seconds(0)),
            std::future_status::ready);
  EXPECT_THAT(response.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  model_->ReleaseEncoding();
  (void)first.get();  // may have ended before the cancellation
  EXPECT_EQ(model_->encodings(), 1u);
}

class ShortWaitTest : public IntakeTest {
 protected:
  ShortWaitTest() : IntakeTest({.max_wait = std::chrono::milliseconds(300)}) {}
};

// What is estimated before a text is tokenized is no more than afterwards: the
// length of a translation without max_length is bounded, too.
TEST_F(ShortWaitTest, NothingIsRefusedThatTheBatcherWouldTake) {
  const auto never = Clock::now() + std::chrono::hours(1);
  model_->SetSteps(300);  // of a caller whose translations do not end
  ASSERT_OK(Take(1, never).get());
  // Half a second in one of these rounds is about 5 ms in each.
  model_->SetSteps(1);
  model_->Hold();
  auto slow = Take(1, never);
  model_->WaitForSteps(301);
  EXPECT_FALSE(
      Take(1, Clock::now() + std::chrono::milliseconds(500)).get().ok());
  model_->Release();
  ASSERT_OK(slow.get());
  // 50 rounds are expected for each of three tokens, of which 12 can be.
  model_->Hold();
  auto running = Take(1, never);
  model_->WaitForSteps(302);
  auto waiting = Take(1, never);
  while (batcher_.queued_sentences() == 0 &&
         waiting.wait_for(std::chrono::seconds(0)) !=
             std::future_status::ready) {
    std::this_thread::yield();
  }
  model_->Release();
  EXPECT_OK(running.get());
  EXPECT_OK(waiting.get());
}

}  // namespace
}  // namespace gshard
