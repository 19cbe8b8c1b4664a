#include "services/cluster/protocol_versions.h"

#include <gmock/gmock.h>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(ProtocolVersionsTest, TheNewestThatBothSpeak) {
  EXPECT_EQ(*CommonVersion({1, 1}, {1, 1}), 1);
  EXPECT_EQ(*CommonVersion({3, 4}, {3, 4}), 4);
  // Either side may be upgraded first.
  EXPECT_EQ(*CommonVersion({3, 4}, {2, 3}), 3);
  EXPECT_EQ(*CommonVersion({2, 3}, {3, 4}), 3);
  EXPECT_EQ(*CommonVersion({1, 9}, {4, 6}), 6);
}

TEST(ProtocolVersionsTest, NoneInCommonIsAnError) {
  const auto refused = [](ProtocolVersions ours, ProtocolVersions members,
                          const char* says) {
    EXPECT_THAT(
        CommonVersion(ours, members),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(says)));
  };
  refused({3, 4}, {1, 2}, "expected 3 to 4, which the coordinator speaks");
  refused({3, 4}, {5, 6}, "got 5 to 6");
  refused({1, 1}, {2, 2}, "expected 1, which the coordinator speaks, got 2");
}

TEST(ProtocolVersionsTest, WhatIsNoVersionIsInvalid) {
  for (const ProtocolVersions members :
       {ProtocolVersions{0, 1}, {-1, 1}, {2, 1}, {0, 0}, {1, 0}}) {
    EXPECT_THAT(CommonVersion({1, 1}, members),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("protocol_version")));
  }
}

}  // namespace
}  // namespace gshard
