#include "services/rpc/server/call_count.h"

#include <gtest/gtest.h>

#include "services/rpc/security/caller.h"

namespace gshard {
namespace {

TEST(CallCountTest, ThereIsRoomForSoMany) {
  CallCount count(2);
  EXPECT_TRUE(count.HasRoom(kAnonymous));
  count.Begin(kAnonymous);
  EXPECT_TRUE(count.HasRoom(kAnonymous));
  count.Begin(kAnonymous);
  EXPECT_FALSE(count.HasRoom(kAnonymous));
  EXPECT_FALSE(count.HasRoom("shop"));
  EXPECT_EQ(count.calls(), 2);
  count.End(kAnonymous);
  EXPECT_TRUE(count.HasRoom("shop"));
}

TEST(CallCountTest, ACallBeginsOnlyIfThereIsRoom) {
  CallCount count(2);
  EXPECT_TRUE(count.TryBegin("shop"));
  EXPECT_FALSE(count.TryBegin("shop"));
  EXPECT_TRUE(count.TryBegin("other"));
  EXPECT_FALSE(count.TryBegin("third"));
  EXPECT_EQ(count.calls(), 2);
  count.Begin("member");
  EXPECT_EQ(count.calls(), 3);
  for (const char* caller : {"shop", "other", "member"}) count.End(caller);
  EXPECT_EQ(count.calls(), 0);
}

TEST(CallCountTest, ACallerLeavesRoomForAnotherOne) {
  CallCount count(9);
  while (count.HasRoom("greedy")) count.Begin("greedy");
  EXPECT_EQ(count.calls(), 6);
  EXPECT_TRUE(count.HasRoom("modest"));
  while (count.HasRoom("modest")) count.Begin("modest");
  EXPECT_EQ(count.calls(), 8);
  EXPECT_TRUE(count.HasRoom("third"));
  for (int i = 0; i < 6; ++i) count.End("greedy");
  EXPECT_TRUE(count.HasRoom("modest"));
  EXPECT_EQ(count.calls(), 2);
}

}  // namespace
}  // namespace gshard
