// Decisions about a model that a cluster of fake members serves.

#ifndef TESTS_SERVICES_COORDINATOR_SERVING_DIFF_FIXTURE_H_
#define TESTS_SERVICES_COORDINATOR_SERVING_DIFF_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "tests/services/coordinator/serving_world.h"

namespace gshard {

class ServingDiffTest : public ::testing::Test {
 protected:
  // Serves m@1 on two workers with two experts each, and a router.
  void Serve(int32_t replicas = 1) {
    world_.AddWorker("w0");
    world_.AddWorker("w1");
    world_.AddRouter("r");
    world_.Want("m@1", 4, replicas);
    world_.Settle();
    ASSERT_EQ(world_.model("m@1").phase, ServedModel::Phase::kAnswering);
  }
  std::string Placed(const std::string& session = "m@1") {
    return ServingWorld::Text(world_.model(session).placement);
  }
  // Expects workers to have what is placed and nothing else.
  void ExpectTidy() {
    std::multiset<std::string> placed, held;
    for (const auto& [session, model] : world_.desired.models) {
      for (const auto& bundle : model.placement.workers()) {
        placed.insert(bundle.name() + " " + bundle.session());
      }
    }
    for (const auto& [name, process] : world_.processes) {
      if (process.member.info.role == MemberRole::kRouter) continue;
      for (const std::string& session : process.sessions) {
        held.insert(name + " " + session);
      }
    }
    EXPECT_EQ(placed, held);
    EXPECT_THAT(world_.violations, ::testing::IsEmpty());
  }

  ServingWorld world_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_SERVING_DIFF_FIXTURE_H_
