// Routers that leave, which have calls to finish.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/coordinator/serving/serving_diff.h"
#include "tests/services/coordinator/serving_diff_fixture.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Phase = ServedModel::Phase;

// A router that drains takes calls for a while, and has others to finish.
class LeavingRouterTest : public ServingDiffTest {
 protected:
  LeavingRouterTest() {
    Serve();
    world_.AddRouter("s");
    world_.Settle();
    world_.AskToLeave("s");
  }
};

TEST_F(LeavingRouterTest, IsToldWhereItsExpertsAre) {
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.AskToLeave("w1");
  EXPECT_THAT(world_.Decide(), ElementsAre("w0 load m@1 {2 3}"));
  world_.Answer("w0", "m@1");
  EXPECT_THAT(world_.Decide(), ElementsAre("r tell m@1 {w0: 0 1, w0: 2 3}",
                                           "s tell m@1 {w0: 0 1, w0: 2 3}"));
  world_.Answer("r", "m@1");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Answer("s", "m@1");
  EXPECT_THAT(world_.Decide(), ElementsAre("w1 unload m@1 {2 3}"));
  world_.Settle();
  EXPECT_FALSE(world_.processes.contains("w1"));
  ExpectTidy();
}

TEST_F(LeavingRouterTest, AnswersWithTheVersionThatItHas) {
  world_.Want("m@2", 4);
  std::vector<std::string> sent = world_.Settle();
  EXPECT_EQ(world_.model("m@2").phase, Phase::kAnswering);
  EXPECT_THAT(sent, Contains("r unload m@1"));
  EXPECT_THAT(sent, Not(Contains(StartsWith("s "))));
  EXPECT_THAT(sent, Not(Contains(HasSubstr(" unload m@1 {"))));
  EXPECT_TRUE(world_.processes.at("s").Answers("m@1"));
  // However often it is looked at.
  for (int i = 0; i < 3; ++i) {
    world_.Look();
    EXPECT_THAT(world_.Settle(), IsEmpty());
  }
  world_.Lose("s");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w0 unload m@1 {0 1}", "w1 unload m@1 {2 3}"));
  ExpectTidy();
}

// Its load was under way.
TEST_F(LeavingRouterTest, IsWaitedForOnceItMayHaveAVersion) {
  world_.Want("m@2", 4);
  world_.AddRouter("t");
  world_.Decide();
  world_.Answer("w0", "m@2");
  world_.Answer("w1", "m@2");
  EXPECT_THAT(world_.Decide(), Contains(StartsWith("t load m@2")));
  world_.AskToLeave("t");
  world_.Answer("r", "m@2");
  world_.Settle();
  EXPECT_TRUE(world_.processes.at("t").Answers("m@2"));
  EXPECT_EQ(world_.model("m@2").phase, Phase::kAnswering);
  for (const char* router : {"s", "t"}) world_.Lose(router);
  world_.Settle();
  ExpectTidy();
}

TEST_F(LeavingRouterTest, ReleasesWhatNobodyWants) {
  world_.desired.models.clear();
  EXPECT_THAT(world_.Decide(), ElementsAre("r unload m@1", "s unload m@1"));
  world_.Answer("r", "m@1");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Settle();
  ExpectTidy();
}

TEST_F(LeavingRouterTest, TheNextCoordinatorFindsIt) {
  world_.Restart();
  world_.AskToLeave("s");  // says so again
  EXPECT_THAT(world_.Decide(), Each(StartsWith("w")));
  world_.Answer("w0", "m@1");
  world_.Answer("w1", "m@1");
  EXPECT_THAT(world_.Decide(),
              ElementsAre(StartsWith("r load m@1"), StartsWith("s load m@1")));
  world_.Settle();
  world_.AskToLeave("w1");
  EXPECT_THAT(world_.Settle(), Contains("s tell m@1 {w0: 0 1, w0: 2 3}"));
  ExpectTidy();
}

TEST_F(LeavingRouterTest, IsNoRouterForANewModel) {
  world_.AskToLeave("r");
  world_.Want("n@1", 4);
  world_.Settle();
  EXPECT_THAT(world_.ended.at("n@1"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("routers")));
  // What serves is maintained.
  EXPECT_EQ(world_.model("m@1").phase, Phase::kAnswering);
  ExpectTidy();
}

}  // namespace
}  // namespace gshard
