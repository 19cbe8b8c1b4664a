// Which workers may be lost, and how workers that ask to leave are let go.

#include "services/coordinator/serving/worker_departure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/services/coordinator/serving_world.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class WorkerDepartureTest : public ::testing::Test {
 protected:
  // Serves experts 0 to 3 of m@1 on two workers, with a router.
  void Serve(int32_t replicas = 1, int64_t capacity_bytes = 0) {
    world_.AddWorker("w0", capacity_bytes);
    world_.AddWorker("w1", capacity_bytes);
    world_.AddRouter("r");
    world_.Want("m@1", 4, replicas);
    world_.Settle();
  }
  WorkerDeparture Of(const std::string& worker) {
    return PlanDepartures(world_.members, world_.desired)
        .at(KeyOf(world_.processes.at(worker).member));
  }
  // The names of workers that may be lost.
  std::vector<std::string> CanBeLost() {
    std::vector<std::string> names;
    for (const auto& [key, departure] :
         PlanDepartures(world_.members, world_.desired)) {
      if (departure.can_be_lost) names.push_back(key.name);
    }
    return names;
  }
  bool IsThere(const std::string& worker) {
    return world_.processes.contains(worker);
  }

  ServingWorld world_;
};

TEST_F(WorkerDepartureTest, ItsExpertsAreCalledElsewhereBeforeItGoes) {
  Serve();
  world_.AskToLeave("w1");
  EXPECT_THAT(world_.Decide(), ElementsAre("w0 load m@1 {2 3}"));
  EXPECT_THAT(Of("w1").why, HasSubstr("m@1 to be placed elsewhere"));
  world_.Answer("w0", "m@1");
  EXPECT_THAT(world_.Decide(), ElementsAre("r tell m@1 {w0: 0 1, w0: 2 3}"));
  EXPECT_FALSE(Of("w1").may_leave);
  world_.Answer("r", "m@1");
  EXPECT_THAT(world_.Decide(), ElementsAre("w1 unload m@1 {2 3}"));
  EXPECT_FALSE(Of("w1").may_leave);
  world_.Answer("w1", "m@1");
  EXPECT_TRUE(Of("w1").may_leave);
  world_.Settle();
  EXPECT_FALSE(IsThere("w1"));
  EXPECT_THAT(world_.violations, IsEmpty());
}

TEST_F(WorkerDepartureTest, OneWithoutExpertsGoesAtOnceAndGetsNone) {
  Serve();
  world_.AddWorker("idle");
  world_.AskToLeave("idle");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  EXPECT_FALSE(IsThere("idle"));
}

TEST_F(WorkerDepartureTest, NothingNewIsPlacedOnIt) {
  Serve(/*replicas=*/2);
  world_.AddWorker("w2");
  world_.AskToLeave("w0");
  world_.Decide();
  world_.Want("n@1", 4, /*replicas=*/2);
  for (const std::string& sent : world_.Decide()) {
    EXPECT_THAT(sent, Not(HasSubstr("w0 load")));
  }
}

TEST_F(WorkerDepartureTest, WithoutRoomElsewhereItStaysUntilThereIs) {
  Serve(/*replicas=*/1, /*capacity_bytes=*/3);
  world_.AskToLeave("w1");
  // Only one of its two experts has room elsewhere, so it keeps serving both.
  world_.Settle();
  EXPECT_TRUE(IsThere("w1"));
  EXPECT_THAT(Of("w1").why, HasSubstr("room elsewhere for its experts of m@1"));
  EXPECT_EQ(
      DescribeModel(world_.model("m@1"), world_.members).experts_unavailable(),
      0);
  world_.AddWorker("w2", /*capacity_bytes=*/3);
  world_.Settle();
  EXPECT_FALSE(IsThere("w1"));
  EXPECT_EQ(
      DescribeModel(world_.model("m@1"), world_.members).experts_unavailable(),
      0);
  EXPECT_THAT(world_.violations, IsEmpty());
}

TEST_F(WorkerDepartureTest, WhoCannotLoadItsExpertsIsNoRoom) {
  Serve();
  world_.AskToLeave("w1");
  world_.Decide();
  world_.Answer("w0", "m@1", absl::ResourceExhaustedError("no memory"));
  world_.Settle();
  EXPECT_TRUE(IsThere("w1"));
  EXPECT_THAT(Of("w1").why, HasSubstr("room elsewhere"));
  world_.EndPauses();
  world_.Settle();
  EXPECT_FALSE(IsThere("w1"));
  EXPECT_THAT(world_.violations, IsEmpty());
}

TEST_F(WorkerDepartureTest, WhereNobodyStaysAllMayGo) {
  Serve(/*replicas=*/2);
  for (const char* worker : {"w0", "w1"}) {
    world_.AskToLeave(worker);
    EXPECT_EQ(Of(worker).may_leave, worker == std::string("w1"));
  }
  EXPECT_TRUE(Of("w0").may_leave);
  EXPECT_THAT(Of("w0").why, HasSubstr("no worker stays"));
  EXPECT_THAT(world_.Decide(), IsEmpty());
  EXPECT_FALSE(IsThere("w0") || IsThere("w1"));
}

TEST_F(WorkerDepartureTest, TheNextCoordinatorIsToldAgain) {
  Serve();
  world_.AskToLeave("w1");
  world_.Decide();
  world_.Restart();
  world_.Decide();
  world_.Look();  // takes a heartbeat
  world_.Settle();
  EXPECT_FALSE(IsThere("w1"));
  EXPECT_THAT(world_.violations, IsEmpty());
}

// A worker with models that the previous coordinator served stays while this
// coordinator is still to place them.
TEST_F(WorkerDepartureTest, ModelsThatAreStillToBeServedAreWaitedFor) {
  Serve();
  ObservedMember& w1 =
      world_.members.at(KeyOf(world_.processes.at("w1").member));
  w1.member.leaving = true;
  w1.sessions.clear();
  w1.reported = {"m@1#0123"};
  world_.desired.models.clear();
  world_.desired.awaited = {"m"};
  EXPECT_FALSE(Of("w1").may_leave);
  EXPECT_THAT(Of("w1").why, HasSubstr("m@1 to be placed elsewhere"));
  // The model is no longer awaited, but a router still has it.
  world_.desired.awaited = {"n"};
  EXPECT_FALSE(Of("w1").may_leave);
  world_.members.at(KeyOf(world_.processes.at("r").member)).reported.clear();
  EXPECT_TRUE(Of("w1").may_leave);
}

TEST_F(WorkerDepartureTest, OneMayBeLostWhoseExpertsOthersHave) {
  Serve(/*replicas=*/1);
  EXPECT_THAT(CanBeLost(), IsEmpty());
  world_.AddWorker("idle");
  EXPECT_THAT(CanBeLost(), UnorderedElementsAre("idle"));
  world_.Lose("idle");
  world_.model("m@1").replicas = 2;
  world_.model("m@1").homes.clear();
  world_.Decide();
  EXPECT_THAT(CanBeLost(), IsEmpty());  // routers do not call them yet
  world_.Settle();
  EXPECT_THAT(CanBeLost(), UnorderedElementsAre("w0", "w1"));
  // The other worker is then the only one left with the experts.
  world_.AskToLeave("w0");
  EXPECT_THAT(CanBeLost(), UnorderedElementsAre("w0"));
  // A model that is still loading answers no calls.
  world_.Want("n@1", 4);
  EXPECT_THAT(CanBeLost(), UnorderedElementsAre("w0"));
}

TEST_F(WorkerDepartureTest,
       ReplicasAreInDifferentDomainsAgainWhenThereAreSome) {
  for (const char* node : {"a", "b"}) {
    for (const char* worker : {"0", "1"}) {
      world_.AddWorker(std::string(node) + worker, /*capacity_bytes=*/0, node);
    }
  }
  world_.AddRouter("r");
  world_.Want("m@1", 4, /*replicas=*/2);
  world_.Settle();
  const auto sharing = [&] {
    return DescribeModel(world_.model("m@1"), world_.members)
        .experts_sharing_domain();
  };
  EXPECT_EQ(sharing(), 0);
  // The node is drained: without another node, replicas share the remaining
  // one.
  for (const char* worker : {"b0", "b1"}) world_.AskToLeave(worker);
  world_.Settle();
  EXPECT_FALSE(IsThere("b0") || IsThere("b1"));
  EXPECT_EQ(sharing(), 4);
  world_.AddWorker("c0", /*capacity_bytes=*/0, "c");
  world_.Settle();
  EXPECT_EQ(sharing(), 0);
  EXPECT_THAT(world_.violations, IsEmpty());
}

}  // namespace
}  // namespace gshard
