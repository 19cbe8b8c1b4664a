#include "services/coordinator/serving/model_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace gshard {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr MonotonicTime kStart;

v1::Member Router(const std::string& name, std::vector<int64_t> rows) {
  v1::Member member;
  member.set_name(name);
  v1::SessionLoad& load = *member.mutable_heartbeat()->add_session_loads();
  load.set_session("m@1");
  load.mutable_expert_rows()->Add(rows.begin(), rows.end());
  return member;
}

TEST(ModelLoadsTest, AddsUpTheRatesOfRouters) {
  ModelLoads loads(absl::Seconds(10));
  loads.Observe({Router("a", {0, 0}), Router("b", {500, 500})}, kStart);
  EXPECT_THAT(loads.Of("m@1"), IsEmpty());
  for (int s = 1; s <= 60; ++s) {
    loads.Observe({Router("a", {30 * s, 0}), Router("b", {500 + 10 * s, 507})},
                  kStart + absl::Seconds(s));
  }
  EXPECT_THAT(loads.Of("m@1"),
              ElementsAre(DoubleNear(40.0, 0.1), DoubleNear(0.0, 0.2)));
  EXPECT_THAT(loads.Of("other@1"), IsEmpty());
}

TEST(ModelLoadsTest, ForgetsWhatIsLongAgo) {
  ModelLoads loads(absl::Seconds(10));
  int64_t rows = 0;
  for (int s = 0; s <= 100; ++s) {
    loads.Observe({Router("a", {rows, rows})}, kStart + absl::Seconds(s));
    rows += 80;
  }
  const int64_t last = rows;
  for (int s = 101; s <= 111; ++s) {
    loads.Observe({Router("a", {last, rows})}, kStart + absl::Seconds(s));
    rows += 80;
  }
  EXPECT_THAT(loads.Of("m@1"),
              ElementsAre(DoubleNear(40.0, 5.0), DoubleNear(80.0, 1.0)));
}

TEST(ModelLoadsTest, ARouterThatStartsAgainCountsFromThere) {
  ModelLoads loads(absl::Seconds(1));
  for (int s = 0; s <= 20; ++s) {
    loads.Observe({Router("a", {1000 + 50 * s, 100 * s})},
                  kStart + absl::Seconds(s));
  }
  // The router's counters restart at 0 and count no rows in this second.
  loads.Observe({Router("a", {0, 0})}, kStart + absl::Seconds(21));
  EXPECT_THAT(loads.Of("m@1"),
              ElementsAre(DoubleNear(25.0, 1.0), DoubleNear(50.0, 1.0)));
}

TEST(ModelLoadsTest, CountersBelowZeroAreNone) {
  ModelLoads loads(absl::Seconds(1));
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (int s = 0; s <= 20; ++s) {
    loads.Observe({Router("a", {s % 2 == 0 ? kLeast : kMost, 70 * s,
                                s % 2 == 0 ? -5000 : 5000})},
                  kStart + absl::Seconds(s));
  }
  EXPECT_THAT(loads.Of("m@1"), ElementsAre(0.0, DoubleNear(70.0, 0.1), 0.0));
}

TEST(ModelLoadsTest, NextToNoTrafficSaysNothing) {
  ModelLoads loads(absl::Seconds(1));
  for (int s = 0; s <= 20; ++s) {
    loads.Observe({Router("a", {s / 10, 0, 0})}, kStart + absl::Seconds(s));
  }
  EXPECT_THAT(loads.Of("m@1"), IsEmpty());
}

}  // namespace
}  // namespace gshard
