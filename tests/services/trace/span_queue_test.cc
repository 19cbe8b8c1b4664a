#include "services/trace/span_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using Time = SpanQueue::Time;

constexpr SpanQueueLimits kLimits{
    .max_spans = 5, .batch = 3, .max_wait = milliseconds(2000)};
constexpr Time kStart{std::chrono::hours(1)};

Span Named(int i) { return {.name = absl::StrCat(i)}; }

TEST(SpanQueueTest, ABatchGoesWhenItIsFullOrOld) {
  SpanQueue queue(kLimits);
  EXPECT_EQ(queue.NextBatch(), Time::max());
  EXPECT_TRUE(queue.Add(Named(0), kStart));
  EXPECT_TRUE(queue.Add(Named(1), kStart + milliseconds(1500)));
  EXPECT_EQ(queue.NextBatch(), kStart + milliseconds(2000));
  EXPECT_TRUE(queue.Add(Named(2), kStart + milliseconds(1501)));
  EXPECT_LT(queue.NextBatch(), kStart);
}

TEST(SpanQueueTest, TheOldestGoFirstAndTheNewestAreDropped) {
  SpanQueue queue(kLimits);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(queue.Add(Named(i), kStart + milliseconds(i)), i < 5) << i;
  }
  std::vector<Span> batch = queue.Take();
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(batch[0].name, "0");
  EXPECT_EQ(batch[2].name, "2");
  EXPECT_EQ(queue.NextBatch(), kStart + milliseconds(2003));
  batch = queue.Take();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[1].name, "4");
  EXPECT_TRUE(queue.Take().empty());
  EXPECT_EQ(queue.NextBatch(), Time::max());
}

}  // namespace
}  // namespace gshard
