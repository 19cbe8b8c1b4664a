// Batcher: what it measures, and expects of what it has measured.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "router/batching/batcher.h"
#include "router/metrics/router_metrics.h"
#include "services/metrics/metrics.h"
#include "tests/router/batching/batcher_fixture.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class BatcherEstimatesTest : public BatcherFixture {
 protected:
  // Returns after this time. REQUIRES: the model is held in a step.
  void LetPass(Batcher& batcher, milliseconds time) {
    EXPECT_FALSE(Add(batcher, {Sentence(99)}, time).results.get().ok());
  }
};

// Otherwise nothing new would be measured, and one slow round, such as the
// first, would keep out everybody.
TEST_F(BatcherEstimatesTest, TheOnlyRequestIsTranslatedWhateverIsExpected) {
  model_->Hold();
  Batcher batcher({});
  Call slow = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(1);
  LetPass(batcher, milliseconds(400));
  model_->Release();
  ASSERT_OK(slow.results.get());
  // Seven rounds of 0.4 s are expected.
  EXPECT_OK(Add(batcher, {Sentence(20, 30)}, milliseconds(1000)).results.get());
}

TEST_F(BatcherEstimatesTest, ModelsThatTakeTurnsAreExpectedToDoSo) {
  Metrics metrics("router", "test");
  const RouterMetrics gauges(metrics);
  const auto other = std::make_shared<FakeModel>("other@1");
  Batcher batcher({}, gauges);
  ASSERT_OK(Add(batcher, {Sentence(1)}).results.get());
  model_->Hold();
  Call running = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(2);
  Call same = Add(batcher, {Sentence(11)});
  const double together = gauges.estimated_wait.Value();
  EXPECT_GT(together, 0);
  batcher.Cancel(*same.id);
  // Each has every other round.
  Call apart = AddFor(other, batcher, {Sentence(11)});
  EXPECT_DOUBLE_EQ(gauges.estimated_wait.Value(), 2 * together);
  batcher.Cancel(*apart.id);
  same = Add(batcher, {Sentence(11)});
  EXPECT_DOUBLE_EQ(gauges.estimated_wait.Value(), together);
  model_->Release();
  EXPECT_OK(running.results.get());
  EXPECT_OK(same.results.get());
}

// What returns from a batch waits anew.
TEST_F(BatcherEstimatesTest, TheTimeInABatchIsNoTimeInTheQueue) {
  Metrics metrics("router", "test");
  Batcher batcher({}, RouterMetrics(metrics));
  model_->SetSteps(2);
  model_->SetRoom(1);
  model_->Hold();
  Call older = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(1);
  Call younger = Add(batcher, {Sentence(20)});
  model_->ReleaseStep();
  model_->WaitForSteps(2);
  LetPass(batcher, milliseconds(1000));
  model_->Release();
  EXPECT_OK(older.results.get());
  EXPECT_THAT(younger.results.get(),
              StatusIs(absl::StatusCode::kResourceExhausted, "full"));
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr("gshard_queue_duration_seconds_bucket{le=\"0.5\"} 3"));
}

}  // namespace
}  // namespace gshard
