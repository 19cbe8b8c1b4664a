// Commands to members, as a function of what they have and what is wanted.

#include "services/coordinator/serving/serving_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/services/coordinator/serving_diff_fixture.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;
using Phase = ServedModel::Phase;

TEST_F(ServingDiffTest, ANewModelIsOnWorkersBeforeRoutersHearOfIt) {
  world_.AddWorker("w0");
  world_.AddWorker("w1");
  world_.AddRouter("r");
  world_.Want("m@1", 4);
  EXPECT_THAT(world_.Decide(),
              ElementsAre("w0 load m@1 {0 1}", "w1 load m@1 {2 3}"));
  EXPECT_THAT(world_.Decide(), IsEmpty());  // already sent
  world_.Answer("w1", "m@1");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Answer("w0", "m@1");
  EXPECT_THAT(world_.Decide(), ElementsAre("r load m@1 {w0: 0 1, w1: 2 3}"));
  EXPECT_EQ(world_.model("m@1").phase, Phase::kLoading);
  world_.Answer("r", "m@1");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  EXPECT_EQ(world_.model("m@1").phase, Phase::kAnswering);
  // A router that joins loads the model.
  world_.AddRouter("s");
  EXPECT_THAT(world_.Decide(), ElementsAre("s load m@1 {w0: 0 1, w1: 2 3}"));
}

TEST_F(ServingDiffTest, ADenseModelNeedsRoutersOnly) {
  world_.AddRouter("r");
  world_.Want("m@1", 0);
  EXPECT_THAT(world_.Settle(), ElementsAre("r load m@1 {}"));
  EXPECT_EQ(world_.model("m@1").phase, Phase::kAnswering);
  EXPECT_EQ(DescribeModel(world_.model("m@1"), world_.members).state(),
            v1::SessionInfo::READY);
}

TEST_F(ServingDiffTest, AVersionStandsByUntilAllRoutersHaveIt) {
  Serve();
  world_.AddRouter("s");
  world_.Settle();
  world_.Want("m@2", 4);
  EXPECT_THAT(world_.Decide(), Each(HasSubstr("load m@2")));
  world_.Answer("w0", "m@2");
  world_.Answer("w1", "m@2");
  EXPECT_THAT(world_.Decide(),
              Each(AllOf(HasSubstr(" load m@2 {w0: "), HasSubstr("standby"))));
  world_.Answer("r", "m@2");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Answer("s", "m@2");
  EXPECT_THAT(world_.Decide(), ElementsAre(StartsWith("r tell m@2 {"),
                                           StartsWith("s tell m@2 {")));
  world_.Answer("s", "m@2");
  EXPECT_THAT(world_.Decide(), IsEmpty());  // r still answers with m@1
  world_.Answer("r", "m@2");
  // Routers first: their unfinished calls need the workers.
  EXPECT_THAT(world_.Decide(), ElementsAre("r unload m@1", "s unload m@1"));
  EXPECT_THAT(world_.ended.at("m@1"),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("replaced")));
  world_.Answer("r", "m@1");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Answer("s", "m@1");
  EXPECT_THAT(world_.Decide(),
              ElementsAre("w0 unload m@1 {0 1}", "w1 unload m@1 {2 3}"));
  world_.Settle();
  ExpectTidy();
}

TEST_F(ServingDiffTest, AVersionThatARouterCannotLoadChangesNothing) {
  Serve();
  world_.Want("m@2", 4);
  world_.Decide();
  world_.Answer("w0", "m@2");
  world_.Answer("w1", "m@2");
  world_.Decide();
  world_.Answer("r", "m@2", absl::FailedPreconditionError("no room"));
  world_.Settle();
  EXPECT_THAT(
      world_.ended.at("m@2"),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no room")));
  EXPECT_TRUE(world_.processes.at("r").Answers("m@1"));
  ExpectTidy();
}

TEST_F(ServingDiffTest, WhatIsInUseGoesWhenRoutersHaveItsSuccessors) {
  Serve();
  world_.AddWorker("w2");
  world_.AddWorker("w3");
  EXPECT_THAT(world_.Decide(), Contains("w2 load m@1 {0}"));
  // One of the moving experts is loaded and serves beside the previous holder.
  world_.Answer("w2", "m@1");
  EXPECT_THAT(world_.Decide(),
              ElementsAre("r tell m@1 {w0: 0 1, w1: 2 3, w2: 0}"));
  // A loaded bundle that adds no expert waits for the others.
  world_.Answer("w0", "m@1");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  EXPECT_EQ(Placed(), "w0: 0 1, w1: 2 3, w2: 0");
  for (const char* worker : {"w1", "w3"}) world_.Answer(worker, "m@1");
  EXPECT_THAT(world_.Decide(), IsEmpty());  // an update to r is pending
  EXPECT_EQ(Placed(), "w0: 1, w1: 3, w2: 0, w3: 2");
  world_.Answer("r", "m@1");
  EXPECT_THAT(world_.Decide(),
              ElementsAre("r tell m@1 {w0: 1, w1: 3, w2: 0, w3: 2}"));
  world_.Answer("r", "m@1");
  EXPECT_THAT(world_.Decide(),
              ElementsAre("w0 unload m@1 {0 1}", "w1 unload m@1 {2 3}"));
  world_.Settle();
  ExpectTidy();
}

TEST_F(ServingDiffTest, ALostWorkersExpertsGoToOthersAndComeBack) {
  Serve();
  world_.Lose("w1");
  // Routers know by themselves whether they reach it.
  EXPECT_THAT(world_.Decide(), ElementsAre("w0 load m@1 {2 3}"));
  EXPECT_EQ(
      DescribeModel(world_.model("m@1"), world_.members).experts_unavailable(),
      2);
  EXPECT_THAT(world_.Settle(), ElementsAre("r tell m@1 {w0: 0 1, w0: 2 3}"));
  EXPECT_EQ(
      DescribeModel(world_.model("m@1"), world_.members).experts_unavailable(),
      0);
  world_.Lose("w0");
  world_.Settle();
  EXPECT_EQ(DescribeModel(world_.model("m@1"), world_.members).state(),
            v1::SessionInfo::BROKEN);
  world_.AddWorker("w0");
  world_.AddWorker("w1");
  world_.Settle();
  EXPECT_EQ(Placed(), "w0: 0 1, w1: 2 3");  // as before the losses
  ExpectTidy();
}

TEST_F(ServingDiffTest, ReplicasComeAndGoWhileItServes) {
  Serve();
  world_.model("m@1").replicas = 2;
  world_.model("m@1").homes.clear();
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w0 load m@1 {2 3}", "w1 load m@1 {0 1}",
                          StartsWith("r tell m@1 {w0: ")));
  EXPECT_EQ(DescribeModel(world_.model("m@1"), world_.members)
                .experts_below_replicas(),
            0);
  ExpectTidy();
}

// The next coordinator finds loaded sessions instead of loading them, and moves
// experts without a gap.
TEST_F(ServingDiffTest, TheNextCoordinatorAsksForWhatTheOneBeforePlaced) {
  Serve();
  const std::string placed = Placed();
  world_.Restart();
  world_.AddWorker("w2");  // joins meanwhile
  world_.AddWorker("w3");
  EXPECT_THAT(
      world_.Decide(),
      ElementsAre("w0 load m@1 {0 1}", "w0 load m@1 {1}", "w1 load m@1 {2 3}",
                  "w1 load m@1 {3}", "w2 load m@1 {0}", "w3 load m@1 {2}"));
  world_.Answer("w0", BundleSession(world_.model("m@1"), {0, 1}));
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Answer("w1", BundleSession(world_.model("m@1"), {2, 3}));
  EXPECT_THAT(world_.Decide(),
              ElementsAre(absl::StrCat("r load m@1 {", placed, "}")));
  world_.Answer("r", "m@1");  // has the model with another placement
  EXPECT_THAT(world_.Decide(),
              ElementsAre(absl::StrCat("r tell m@1 {", placed, "}")));
  EXPECT_EQ(world_.model("m@1").phase, Phase::kLoaded);
  world_.Settle();
  EXPECT_EQ(Placed(), "w0: 1, w1: 3, w2: 0, w3: 2");
  ExpectTidy();
}

TEST_F(ServingDiffTest, WhatIsKeptOnDiskIsNotTrusted) {
  v1::Placement kept;
  for (int i = 0; i < 2; ++i) {
    v1::WorkerPlacement* const bundle = kept.add_workers();
    bundle->set_name("w0");
    bundle->set_session("m@1#0000000000000000");
    for (const int32_t expert : {7, 1, 1, -1, 0}) bundle->add_experts(expert);
  }
  ServedModel& model = world_.Want("m@1", 4);
  Adopt(kept, &model);
  EXPECT_EQ(Placed(), "w0: 0 1");
  EXPECT_EQ(model.placement.workers(0).session(), BundleSession(model, {0, 1}));
  // A worker that joins later is asked then.
  FindKept(&model, &world_.members);
  EXPECT_EQ(model.away.workers_size(), 1);
  world_.AddWorker("w0");
  FindKept(&model, &world_.members);
  EXPECT_EQ(model.away.workers_size(), 0);
  EXPECT_THAT(world_.Decide(), Contains("w0 load m@1 {0 1}"));
}

TEST_F(ServingDiffTest, WhatNobodyWantsGoesFromRoutersFirstAtTheSecondLook) {
  Serve();
  world_.Restart();
  world_.desired.models.clear();
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Look();
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Look();
  // Names that are to be served later keep their sessions.
  world_.desired.awaited = {"m"};
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.desired.awaited = {"other"};
  EXPECT_THAT(world_.Decide(), ElementsAre("r unload m@1"));
  EXPECT_THAT(world_.Decide(), IsEmpty());
  world_.Answer("r", "m@1");
  world_.Settle();
  ExpectTidy();
}

// The previous coordinator ended between the two versions.
TEST_F(ServingDiffTest, AVersionThatIsForgottenAnswersUntilTheNextOneDoes) {
  Serve();
  world_.Restart();
  world_.desired.models.clear();
  world_.Want("m@2", 4).standby = true;
  world_.Decide();
  world_.Look();
  world_.Look();
  EXPECT_THAT(world_.Decide(), IsEmpty());
  const std::vector<std::string> sent = world_.Settle();
  EXPECT_THAT(sent, Contains("r unload m@1"));
  EXPECT_TRUE(world_.processes.at("r").Answers("m@2"));
  ExpectTidy();
}

TEST_F(ServingDiffTest, ARouterThatComesBackAnswersUntilItHasTheNextVersion) {
  Serve();
  world_.AddRouter("s");
  world_.Settle();
  const ServingWorld::Process before = world_.processes.at("s");
  world_.Lose("s");
  world_.Want("m@2", 4);
  world_.Settle();
  ASSERT_EQ(world_.model("m@2").phase, Phase::kAnswering);
  world_.AddRouter("s");
  world_.processes.at("s").sessions = before.sessions;
  world_.processes.at("s").placements = before.placements;
  EXPECT_THAT(world_.Decide(), ElementsAre(StartsWith("s load m@2 {")));
  // However long that takes, and although it fails at first.
  for (const bool failed : {false, true}) {
    SCOPED_TRACE(failed);
    if (failed) world_.Answer("s", "m@2", absl::UnavailableError("not yet"));
    for (int i = 0; i < 3; ++i) world_.Look();
    EXPECT_THAT(world_.Decide(), IsEmpty());
  }
  world_.EndPauses();
  EXPECT_THAT(world_.Decide(), ElementsAre(StartsWith("s load m@2 {")));
  world_.Answer("s", "m@2");
  EXPECT_THAT(world_.Settle(), Contains("s unload m@1"));
  EXPECT_TRUE(world_.processes.at("s").Answers("m@2"));
  ExpectTidy();
}

TEST_F(ServingDiffTest, ANameAndVersionMayComeBackAsAnotherCheckpoint) {
  Serve();
  world_.Lose("w1");
  world_.Decide();
  world_.Answer("w0", "m@1");
  world_.Decide();  // an update to r is pending
  world_.desired.models.clear();
  world_.Want("m@1", 4, 1, /*content=*/78);
  const std::vector<std::string> sent = world_.Settle();
  EXPECT_THAT(sent, Contains("w0 load m@1 {0 1 2 3}"));
  EXPECT_THAT(sent, Contains("r unload m@1"));
  EXPECT_THAT(sent, Contains("r load m@1 {w0: 0 1 2 3}"));
  EXPECT_THAT(sent, Contains("w0 unload m@1 {0 1}"));
  EXPECT_EQ(world_.model("m@1").phase, Phase::kAnswering);
  ExpectTidy();
}

TEST_F(ServingDiffTest, AModelDoesNotFailForAnEarlierOneOfItsName) {
  world_.AddWorker("w0");
  world_.AddRouter("r");
  world_.Want("m@1", 4);
  world_.Decide();
  const std::string bundle = BundleSession(world_.model("m@1"), {0, 1, 2, 3});
  world_.desired.models.clear();
  world_.Want("m@1", 4, 1, /*content=*/78);
  world_.Decide();
  world_.Answer("w0", bundle, absl::DataLossError("damaged"));
  world_.Settle();
  EXPECT_THAT(world_.ended, IsEmpty());
  EXPECT_EQ(world_.model("m@1").phase, Phase::kAnswering);
  ExpectTidy();
}

TEST_F(ServingDiffTest, OneThatComesBackFindsWhatHasNotBeenReleased) {
  Serve();
  const ServedModel before = world_.model("m@1");
  world_.desired.models.clear();
  EXPECT_THAT(world_.Decide(), ElementsAre("r unload m@1"));
  world_.Want("m@1", 4);
  EXPECT_THAT(world_.Decide(), IsEmpty());
  EXPECT_EQ(Placed(), "w0: 0 1, w1: 2 3");
  world_.Answer("r", "m@1");
  EXPECT_THAT(world_.Decide(), ElementsAre("r load m@1 {w0: 0 1, w1: 2 3}"));
}

TEST_F(ServingDiffTest, AWorkerWithoutRoomKeepsWhatItHas) {
  Serve();
  world_.Lose("w1");
  world_.Decide();
  world_.Answer("w0", BundleSession(world_.model("m@1"), {2, 3}),
                absl::ResourceExhaustedError("no memory"));
  world_.Settle();
  EXPECT_EQ(Placed(), "w0: 0 1, w1: 2 3");
  EXPECT_EQ(
      DescribeModel(world_.model("m@1"), world_.members).experts_unavailable(),
      2);
  world_.EndPauses();
  EXPECT_THAT(world_.Decide(), ElementsAre("w0 load m@1 {2 3}"));
}

TEST_F(ServingDiffTest, AModelThatDoesNotServeYetFailsWithoutMembers) {
  world_.AddWorker("w0");
  world_.AddRouter("r");
  world_.Want("m@1", 4);
  world_.Decide();
  world_.Lose("w0");
  EXPECT_THAT(world_.Decide(), IsEmpty());
  EXPECT_THAT(world_.ended.at("m@1"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("workers")));

  world_.AddWorker("w0");
  world_.Want("n@1", 4);
  world_.Decide();
  world_.Answer("w0", "n@1");
  world_.Lose("r");
  world_.Decide();
  EXPECT_THAT(world_.ended.at("n@1"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("routers")));

  world_.AddRouter("r");
  world_.Want("big@1", 4);
  world_.Lose("w0");
  world_.AddWorker("w0", /*capacity_bytes=*/3);
  world_.Decide();
  EXPECT_THAT(world_.ended.at("big@1"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
}

TEST_F(ServingDiffTest, ANewModelFailsIfAllRoutersAreOfAnotherRelease) {
  Serve();
  world_.AddRouter("s");
  world_.Settle();
  world_.Want("n@1", 4);
  world_.Decide();
  for (const char* worker : {"w0", "w1"}) world_.Answer(worker, "n@1");
  world_.Decide();
  world_.Answer("r", "n@1", absl::UnimplementedError("other segments"));
  world_.Decide();
  EXPECT_THAT(world_.ended, IsEmpty());
  world_.Answer("s", "n@1", absl::UnimplementedError("other segments"));
  world_.Settle();
  EXPECT_THAT(world_.ended.at("n@1"), StatusIs(absl::StatusCode::kUnimplemented,
                                               HasSubstr("other segments")));
  ExpectTidy();
  // Not before it has asked them about another model of the name.
  world_.ended.clear();
  world_.Want("n@1", 4, 1, /*content=*/78);
  world_.Settle();
  EXPECT_EQ(world_.model("n@1").phase, Phase::kAnswering);
}

TEST_F(ServingDiffTest, RoutersThatCannotAreNotWaitedFor) {
  Serve();
  for (const char* router : {"old", "ill"}) world_.AddRouter(router);
  world_.Decide();
  world_.Answer("old", "m@1", absl::UnimplementedError("other segments"));
  world_.Answer("ill", "m@1", absl::NotFoundError("no such folder"));
  world_.Lose("w1");
  world_.Settle();
  EXPECT_EQ(Placed(), "w0: 0 1, w0: 2 3");
  world_.EndPauses();
  EXPECT_THAT(world_.Decide(), ElementsAre(StartsWith("ill load m@1")));
  EXPECT_THAT(world_.ended, IsEmpty());
}

// The next release's coordinator has other segments, and routers are replaced
// one by one.
TEST_F(ServingDiffTest, ARouterOfTheReleaseBeforeKeepsItsExperts) {
  Serve();
  world_.AddRouter("old");
  world_.Settle();
  const v1::Placement placed = world_.model("m@1").placement;
  world_.Lose("r");
  world_.AddRouter("r");
  world_.Restart();
  world_.desired.models.clear();
  Adopt(placed, &world_.Want("m@1", 4, 1, /*content=*/78));
  world_.Decide();
  for (const char* worker : {"w0", "w1"}) world_.Answer(worker, "m@1");
  world_.Decide();
  world_.Answer("old", "m@1", absl::UnimplementedError("other segments"));
  world_.Settle();
  EXPECT_EQ(world_.model("m@1").phase, Phase::kAnswering);
  for (int i = 0; i < 2; ++i) world_.Look();
  EXPECT_THAT(world_.Settle(), IsEmpty());
  // What it cannot call is not kept for it.
  for (const char* worker : {"w2", "w3"}) world_.AddWorker(worker);
  EXPECT_THAT(world_.Settle(), AllOf(Contains("w0 unload m@1 {0 1}").Times(1),
                                     Contains("w1 unload m@1 {2 3}").Times(1)));
  EXPECT_THAT(world_.violations, IsEmpty());
  world_.Lose("old");
  EXPECT_THAT(world_.Settle(),
              ElementsAre("w0 unload m@1 {0 1}", "w1 unload m@1 {2 3}"));
  ExpectTidy();
}

TEST_F(ServingDiffTest, CountsTheBytesThatWorkersServe) {
  const auto bytes = [&] {
    std::map<std::string, int64_t> by_name;
    for (const auto& [key, served] :
         ServedBytes(world_.members, world_.desired)) {
      by_name[key.name] = served;
    }
    return by_name;
  };
  Serve();
  EXPECT_THAT(bytes(), ElementsAre(Pair("w0", 2), Pair("w1", 2)));
  // Another model counts from the moment that it is being loaded.
  world_.Want("n@1", 6);
  world_.Decide();
  EXPECT_THAT(bytes(), ElementsAre(Pair("w0", 5), Pair("w1", 5)));
  world_.Answer("w0", "n@1", absl::ResourceExhaustedError("no memory"));
  EXPECT_THAT(bytes(), ElementsAre(Pair("w0", 2), Pair("w1", 5)));
  world_.desired.models.erase("n@1");
  EXPECT_THAT(bytes(), ElementsAre(Pair("w0", 2), Pair("w1", 2)));
  // What a worker took over from another counts, too.
  world_.Lose("w1");
  world_.Settle();
  EXPECT_THAT(bytes(), ElementsAre(Pair("w0", 4)));
}

}  // namespace
}  // namespace gshard
