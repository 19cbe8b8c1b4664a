// BatchLane: what becomes of sentences that a batch cannot take.

#include "router/batching/batch_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "services/base/retry_delay.h"
#include "services/metrics/metrics.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class BatchLaneTest : public ::testing::Test {
 protected:
  BatchLaneTest() {
    sentence_.ids = {1, 5, 2};
    sentence_.options = {.beam_size = 1, .max_length = 7};
  }

  // A sentence of each of these requests joins, in the order of their age.
  RoundResult Round(const std::vector<uint64_t>& requests) {
    std::vector<JoiningItem> joining;
    for (const uint64_t request : requests) {
      WaitingSentence waiting{.caller = "a",
                              .request = request,
                              .cost = {.source_tokens = 3, .rows = 1},
                              .arrival = now_ - hours(2) + seconds(request),
                              .queued_since = now_ - seconds(20)};
      joining.push_back({.id = ++last_id_,
                         .waiting = std::move(waiting),
                         .sentence = &sentence_,
                         .trace_id = ""});
    }
    return lane_.Round({}, std::move(joining),
                       {.deadline = now_ + hours(1), .all_cancelled = &stop_});
  }

  const std::chrono::steady_clock::time_point now_ =
      std::chrono::steady_clock::now();
  const std::shared_ptr<FakeModel> model_ =
      std::make_shared<FakeModel>("tiny@1");
  SourceSentence sentence_;
  uint64_t last_id_ = 0;
  Cancellation stop_;
  Metrics metrics_{"router", "test"};
  BatchLane lane_{model_, {}, RouterMetrics(metrics_)};
};

TEST_F(BatchLaneTest, ASentenceHasWaitedOnceItHasJoined) {
  model_->FailJoin(absl::ResourceExhaustedError("full"));
  EXPECT_THAT(Round({1, 2}).outcomes, SizeIs(2));
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("gshard_queue_duration_seconds_count 0"));
  model_->FailJoin(absl::OkStatus());
  EXPECT_THAT(Round({1}).outcomes, SizeIs(1));
  // Since it returned to the queue, not since it arrived.
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("gshard_queue_duration_seconds_bucket{le=\"60\"} 1"));
}

// A delay says that the error may pass. An error without one is of rows that
// are too many for a message: those of some of the requests may be few enough.
TEST_F(BatchLaneTest, ARequestThatNoWorkerCanTakeIsNotToBeRepeated) {
  const auto delay_of = [](const RoundOutcome& outcome) {
    EXPECT_THAT(outcome.result.status(),
                StatusIs(absl::StatusCode::kResourceExhausted, "too long"));
    return RetryDelay(outcome.result.status());
  };
  const absl::Status too_long = absl::ResourceExhaustedError("too long");
  for (const bool joining : {true, false}) {
    SCOPED_TRACE(joining);
    const auto fail = [&](const absl::Status& status) {
      return joining ? model_->FailJoin(status) : model_->Fail(status);
    };
    fail(too_long);
    std::vector<RoundOutcome> outcomes = Round({1, 2}).outcomes;
    ASSERT_THAT(outcomes, SizeIs(2));
    EXPECT_TRUE(outcomes[0].again);
    EXPECT_FALSE(outcomes[1].again);
    EXPECT_TRUE(delay_of(outcomes[1]).has_value());
    outcomes = Round({1, 1}).outcomes;
    ASSERT_THAT(outcomes, SizeIs(2));
    for (const RoundOutcome& outcome : outcomes) {
      EXPECT_FALSE(outcome.again);
      EXPECT_EQ(delay_of(outcome), std::nullopt);
    }
    fail(WithRetryDelay(too_long, milliseconds(7)));
    outcomes = Round({1}).outcomes;
    ASSERT_THAT(outcomes, SizeIs(1));
    EXPECT_FALSE(outcomes[0].again);
    EXPECT_EQ(delay_of(outcomes[0]), milliseconds(7));
    fail(absl::OkStatus());
  }
}

}  // namespace
}  // namespace gshard
