// Members that the coordinator has lost, but which go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/coordinator/serving/serving_diff.h"
#include "tests/services/coordinator/serving_diff_fixture.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class CutOffTest : public ServingDiffTest {
 protected:
  v1::SessionInfo Describe() {
    return DescribeModel(world_.model("m@1"), world_.members);
  }
  // What the router calls.
  std::string Called() {
    return ServingWorld::Text(world_.processes.at("r").placements.at("m@1"));
  }
};

TEST_F(CutOffTest, RoutersGoOnCallingWorkersThatTheyReach) {
  Serve();
  for (const char* worker : {"w0", "w1"}) world_.CutOff(worker);
  EXPECT_THAT(world_.Settle(), IsEmpty());
  EXPECT_EQ(Describe().state(), v1::SessionInfo::BROKEN);
  EXPECT_EQ(Describe().experts_unavailable(), 4);
  EXPECT_THAT(Describe().placement().workers(), IsEmpty());
  // A router that joins is told of them once it has the model.
  world_.AddRouter("s");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("s load m@1 {}", "s tell m@1 {w0: 0 1, w1: 2 3}"));
  // Those that come back have what they had: nothing is loaded meanwhile.
  world_.Rejoin("w1");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w1 load m@1 {2 3}",  // and it has that
                          "r tell m@1 {w1: 2 3, w0: 0 1}",
                          "s tell m@1 {w1: 2 3, w0: 0 1}"));
  EXPECT_EQ(Describe().state(), v1::SessionInfo::READY);
  EXPECT_EQ(Describe().experts_unavailable(), 2);
  world_.Rejoin("w0");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w0 load m@1 {0 1}", "r tell m@1 {w0: 0 1, w1: 2 3}",
                          "s tell m@1 {w0: 0 1, w1: 2 3}"));
  EXPECT_EQ(Describe().experts_unavailable(), 0);
  ExpectTidy();
}

// As after a pause of the coordinator.
TEST_F(CutOffTest, AllComeBackWithWhatTheyHad) {
  Serve();
  for (const char* name : {"r", "w0", "w1"}) world_.CutOff(name);
  EXPECT_THAT(world_.Settle(), IsEmpty());
  world_.Rejoin("r");
  world_.Settle();
  EXPECT_EQ(Called(), "w0: 0 1, w1: 2 3");
  world_.Rejoin("w0");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w0 load m@1 {0 1}", StartsWith("r tell m@1")));
  EXPECT_EQ(Called(), "w0: 0 1, w1: 2 3");
  world_.Rejoin("w1");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w1 load m@1 {2 3}", StartsWith("r tell m@1")));
  ExpectTidy();
}

TEST_F(CutOffTest, WhoDoesNotComeBackIsReplacedAfterAWait) {
  Serve();
  for (const char* worker : {"w0", "w1"}) world_.CutOff(worker);
  world_.Settle();
  world_.Lose("w1");
  world_.Rejoin("w0");
  world_.Settle();
  world_.EndPauses();
  EXPECT_THAT(world_.Settle(), ElementsAre("w0 load m@1 {2 3}",
                                           "r tell m@1 {w0: 0 1, w0: 2 3}"));
  ExpectTidy();
}

// Routers are loading it.
TEST_F(CutOffTest, AModelThatDoesNotServeYetIsPlacedAnew) {
  world_.AddWorker("w0");
  world_.AddRouter("r");
  world_.Want("m@1", 4);
  world_.Decide();
  world_.Answer("w0", "m@1");
  EXPECT_THAT(world_.Decide(), ElementsAre("r load m@1 {w0: 0 1 2 3}"));
  world_.CutOff("w0");
  world_.AddWorker("w1");
  EXPECT_THAT(world_.Decide(), ElementsAre("w1 load m@1 {0 1 2 3}"));
  world_.Settle();
  EXPECT_EQ(Placed(), "w1: 0 1 2 3");
}

// The coordinator that knew of the loss is restarted.
TEST_F(CutOffTest, TheNextCoordinatorKnowsWhereItsExpertsWere) {
  Serve();
  for (const char* name : {"r", "w0", "w1"}) world_.CutOff(name);
  world_.Settle();
  world_.Restart();
  EXPECT_TRUE(world_.model("m@1").adopted);
  EXPECT_THAT(world_.Decide(),
              ElementsAre("w0 load m@1 {0 1}", "w1 load m@1 {2 3}"));
  world_.Settle();
  EXPECT_EQ(Placed(), "w0: 0 1, w1: 2 3");
  ExpectTidy();
}

TEST_F(CutOffTest, AWorkerComesBackWithItsBundles) {
  Serve();
  world_.Lose("w1");
  world_.Settle();
  ASSERT_EQ(Placed(), "w0: 0 1, w0: 2 3");
  world_.CutOff("w0");
  world_.Settle();
  world_.Rejoin("w0");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w0 load m@1 {0 1}", "w0 load m@1 {2 3}",
                          "r tell m@1 {w0: 0 1, w0: 2 3}"));
  ExpectTidy();
}

// With replicas, others answer meanwhile.
TEST_F(CutOffTest, AReplicaComesBack) {
  Serve(/*replicas=*/2);
  world_.CutOff("w1");
  EXPECT_THAT(world_.Settle(), ElementsAre("r tell m@1 {w0: 0 1 2 3}"));
  world_.Rejoin("w1");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w1 load m@1 {0 1 2 3}",
                          "r tell m@1 {w0: 0 1 2 3, w1: 0 1 2 3}"));
  ExpectTidy();
}

}  // namespace
}  // namespace gshard
