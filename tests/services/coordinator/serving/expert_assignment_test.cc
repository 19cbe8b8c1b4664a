// Which experts workers have as loads and members change, in a cluster of fake
// ones.

#include "services/coordinator/serving/expert_assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/services/coordinator/serving_world.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ExpertAssignmentTest : public ::testing::Test {
 protected:
  // How many workers hold the expert.
  int Replicas(const std::string& session, int32_t expert) {
    int count = 0;
    for (const v1::WorkerPlacement& bundle :
         world_.model(session).placement.workers()) {
      count += static_cast<int>(
          std::count(bundle.experts().begin(), bundle.experts().end(), expert));
    }
    return count;
  }

  // The bytes of wanted models that workers hold or load, as "w0 1, w1 4".
  std::string Served() {
    std::vector<std::string> served;
    for (const auto& [key, bytes] :
         ServedBytes(world_.members, world_.desired)) {
      served.push_back(absl::StrCat(key.name, " ", bytes));
    }
    return absl::StrJoin(served, ", ");
  }

  ServingWorld world_;
};

TEST_F(ExpertAssignmentTest, AModelGetsTheRoomThatOthersLeave) {
  world_.AddWorker("w0", /*capacity_bytes=*/6);
  world_.AddWorker("w1", /*capacity_bytes=*/6);
  world_.AddWorker("w2", /*capacity_bytes=*/14);
  world_.AddRouter("r");
  world_.Want("a@1", 12);
  world_.Settle();
  EXPECT_EQ(Served(), "w0 4, w1 4, w2 4");
  world_.Want("b@1", 14);
  world_.Settle();
  EXPECT_EQ(Served(), "w0 6, w1 6, w2 14");
  EXPECT_EQ(world_.model("b@1").phase, ServedModel::Phase::kAnswering);
  world_.Want("c@1", 1);
  world_.Settle();
  EXPECT_THAT(
      world_.ended.at("c@1"),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("left out")));
  // Room that another model has left is used.
  world_.desired.models.erase("a@1");
  world_.Settle();
  world_.ended.clear();
  world_.Want("d@1", 10);
  world_.Settle();
  EXPECT_EQ(world_.model("d@1").phase, ServedModel::Phase::kAnswering);
}

TEST_F(ExpertAssignmentTest, ModelsDoNotTakeTheSameRoom) {
  for (int w = 0; w < 4; ++w) {
    world_.AddWorker(absl::StrCat("w", w), /*capacity_bytes=*/3);
  }
  world_.AddRouter("r");
  for (const char* session : {"a@1", "b@1"}) world_.Want(session, 4);
  world_.Settle();
  EXPECT_EQ(Served(), "w0 2, w1 2, w2 2, w3 2");
  // Both models look for a place for an expert at the same time.
  world_.Lose("w3");
  world_.Decide();
  EXPECT_EQ(Served(), "w0 2, w1 3, w2 3");
  EXPECT_THAT(world_.Settle(), Not(IsEmpty()));
  EXPECT_EQ(Served(), "w0 2, w1 3, w2 3");
}

TEST_F(ExpertAssignmentTest, AnExpertThatIsNoLongerHotGivesReplicasUp) {
  for (int w = 0; w < 4; ++w) world_.AddWorker(absl::StrCat("w", w));
  world_.AddRouter("r");
  ServedModel& model = world_.Want("m@1", 16);
  world_.Settle();
  model.load.assign(16, 100.0);
  model.load[0] = 1e5;
  world_.Settle();
  ASSERT_GT(Replicas("m@1", 0), 1);
  model.load[0] = 100.0;
  world_.Settle();
  EXPECT_EQ(Replicas("m@1", 0), 1);
  EXPECT_THAT(world_.violations, IsEmpty());
}

}  // namespace
}  // namespace gshard
