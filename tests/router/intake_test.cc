// A request's way to the batcher, with a model that does not think.

#include "router/intake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "router/translate_request.h"
#include "services/base/status_macros.h"
#include "services/rpc/raw_message.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Response = absl::StatusOr<v1::TranslateResponse>;

constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;

class IntakeTest : public ::testing::Test {
 protected:
  IntakeTest() { EXPECT_OK(models_.Add(model_)); }

  // A request whose own deadline, which it tells when it is parsed, is
  // `deadline`, on a stream that has time.
  std::future<Response> Take(int sentences, Clock::time_point deadline) {
    v1::TranslateRequest request;
    for (int i = 0; i < sentences; ++i) {
      v1::Sentence* const sentence = request.add_sentences();
      sentence->set_text("a");
      sentence->set_source_language("de");
    }
    auto done = std::make_shared<std::promise<Response>>();
    EXPECT_OK(intake_.Take(
        {.bytes = SerializeRaw(request),
         .user = {"shop", AllGrants()},
         .caller = "shop",
         .deadline = Clock::now() + std::chrono::hours(1),
         .stop = stop_,
         .parse = [deadline](
                      grpc::ByteBuffer bytes) -> absl::StatusOr<ParsedRequest> {
           ASSIGN_OR_RETURN(v1::TranslateRequest parsed,
                            ParseTranslateRequest(std::move(bytes)));
           return ParsedRequest{std::move(parsed), deadline};
         },
         .done = [done](Response response) { done->set_value(response); }}));
    return done->get_future();
  }

  const std::shared_ptr<FakeModel> model_ =
      std::make_shared<FakeModel>("tiny@1");
  const std::shared_ptr<Cancellation> stop_ = std::make_shared<Cancellation>();
  ModelTable models_;
  Batcher batcher_{{}};
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

TEST_F(IntakeTest, WhatNobodyWaitsForAnyMoreIsDoneInsideOfTake) {
  const auto never = Clock::now() + std::chrono::hours(1);
  model_->HoldEncoding();
  auto first = Take(1, never);  // has the only thread
  model_->WaitForEncodings(1);
  stop_->Cancel();
  auto response = Take(1, never);
  ASSERT_EQ(response.wait_for(std::chrono::seconds(0)),
            std::future_status::ready);
  EXPECT_THAT(response.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  model_->ReleaseEncoding();
  (void)first.get();  // may have been done by then
  EXPECT_EQ(model_->encodings(), 1u);
}

}  // namespace
}  // namespace gshard
