// Which experts workers have as loads and members change, in a cluster of fake
// ones.

#include "services/coordinator/serving/expert_assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/services/coordinator/serving_world.h"

namespace gshard {
namespace {

using ::testing::IsEmpty;

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

  ServingWorld world_;
};

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
