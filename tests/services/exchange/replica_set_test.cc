// Which placement a router's calls follow. How they follow it, with workers, is
// tested in tests/router/workers/serving_exchange_test.cc.

#include "services/exchange/replica_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const ReplicaGroup> GroupOf(int64_t version) {
  return std::make_shared<const ReplicaGroup>(
      ReplicaGroup{.version = version, .holdings = {}});
}

TEST(ReplicaSetTest, AnOlderPlacementIsRefused) {
  ReplicaSet replicas(4, GroupOf(7));
  EXPECT_OK(replicas.Update(GroupOf(7)));
  EXPECT_OK(replicas.Update(GroupOf(8)));
  EXPECT_THAT(replicas.Update(GroupOf(7)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected at least 8, got 7")));
  EXPECT_EQ(replicas.group()->version, 8);
}

TEST(ReplicaSetTest, AnotherCoordinatorCountsOnItsOwn) {
  ReplicaSet replicas(4, GroupOf(7));
  replicas.AcceptAnyVersion();
  EXPECT_OK(replicas.Update(GroupOf(3)));
  EXPECT_EQ(replicas.group()->version, 3);
  EXPECT_THAT(replicas.Update(GroupOf(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected at least 3, got 2")));
  EXPECT_EQ(replicas.group()->version, 3);
}

}  // namespace
}  // namespace gshard
