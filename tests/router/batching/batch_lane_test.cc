// BatchLane: what becomes of sentences that a batch cannot take.

#include "router/batching/batch_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "services/metrics/metrics.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::hours;
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

}  // namespace
}  // namespace gshard
